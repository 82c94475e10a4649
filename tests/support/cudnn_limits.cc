#include "tests/support/cudnn_limits.h"

namespace onnx_train {
namespace {

cuda::CudnnLimits limits_of_tests;

}  // namespace

OtherCudnnLimits::OtherCudnnLimits(const cuda::CudnnLimits& limits) { limits_of_tests = limits; }
OtherCudnnLimits::~OtherCudnnLimits() { limits_of_tests = {}; }

namespace cuda {

const CudnnLimits& cudnn_limits() { return limits_of_tests; }

}  // namespace cuda
}  // namespace onnx_train
