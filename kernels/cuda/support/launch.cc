#include "kernels/cuda/support/launch.h"

#include "kernels/cuda/support/stream.h"

namespace onnx_train::cuda {

cudaStream_t stream_of(const Launch& launch) { return static_cast<const CudaStream*>(launch.stream)->handle(); }

}  // namespace onnx_train::cuda
