// The CUDA devices of this process, as CUDA_VISIBLE_DEVICES numbers them.
#pragma once

#include "kernels/device.h"

namespace onnx_train {

// Creates the device on first use. Throws Error with the reason if there is no device of this number.
Device& cuda_device(int number = 0);

}  // namespace onnx_train
