// What tests ask of the CUDA backend, in a build that does not run it on the host.
#include "kernels/cuda/support/device.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

Device& cuda_device(int) { fail("these tests were built without the CUDA backend on the host"); }

}  // namespace onnx_train
