// The first CUDA device of this process; CUDA_VISIBLE_DEVICES chooses it.
#pragma once

#include "kernels/device.h"

namespace onnx_train {

// Creates the device on first use. Throws Error with the reason when there is none.
Device& cuda_device();

}  // namespace onnx_train
