#include "kernels/cuda/movement/resampling_types.h"

#include "kernels/dispatch.h"
#include "kernels/math/convert.h"

namespace onnx_train::cuda {
namespace {

template <typename S>
__global__ void widen_kernel(int64_t n, const S* x, double* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  if constexpr (std::is_same_v<S, __half>) {
    y[i] = static_cast<double>(__half2float(x[i]));
  } else {
    y[i] = math::convert<double>(x[i]);
  }
}

template <typename S>
__global__ void narrow_kernel(int64_t n, const double* x, S* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  if constexpr (std::is_same_v<S, __half>) {
    y[i] = __float2half(static_cast<float>(x[i]));
  } else {
    y[i] = math::saturated<S>(x[i]);
  }
}

// Calls f(S{}) for the type as device code holds it.
template <typename F>
void dispatch(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat16: return f(__half{});
    case DType::kBFloat16: return f(BFloat16{});
    case DType::kBool: return f(bool{});
    default: return dispatch_integer(dtype, f);
  }
}

}  // namespace

void widen(const Launch& launch, DType dtype, int64_t n, const void* x, double* y) {
  dispatch(dtype, [&]<typename S>(S) {
    enqueue(launch, "widen", widen_kernel<S>, blocks_for(n), kThreads, 0, n, static_cast<const S*>(x), y);
  });
}

void narrow(const Launch& launch, DType dtype, int64_t n, const double* x, void* y) {
  dispatch(dtype, [&]<typename S>(S) {
    enqueue(launch, "narrow", narrow_kernel<S>, blocks_for(n), kThreads, 0, n, x, static_cast<S*>(y));
  });
}

}  // namespace onnx_train::cuda
