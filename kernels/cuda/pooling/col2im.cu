// Col2Im: each place of an image adds the elements of windows that were read from it.
#include "kernels/cuda/pooling/pools.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/dispatch.h"

namespace onnx_train::cuda {
namespace {

// One thread per place of an image, n in all. It adds its taps in order, as the CPU does.
template <typename T>
__global__ void add_columns(int64_t n, WindowGeometry g, const T* __restrict__ x, T* __restrict__ y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t size = in_spatial_size(g), windows = out_spatial_size(g), plane = i / size;
  const T* columns = x + plane * taps(g) * windows;
  T sum = 0;
  for (int64_t tap = 0; tap < taps(g); ++tap) {
    const int64_t window = window_of(g, i - plane * size, tap);
    if (window >= 0) sum += columns[tap * windows + window];
  }
  y[i] = sum;
}

}  // namespace

Prepared prepare_col2im(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    return {[g = column_geometry(spec), n = spec.out_size()](const Launch& launch) {
      enqueue_each(launch, "add_columns", add_columns<T>, n, g, launch.in<T>(0), launch.out<T>());
    }};
  });
}

}  // namespace onnx_train::cuda
