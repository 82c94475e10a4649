// Normalization over the neighbours of an element: LpNormalization along an axis, LRN over neighbouring channels.
#include "kernels/cuda/normalization/normalization.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/channels.h"
#include "kernels/geometry/indexing/axis_view.h"

namespace onnx_train::cuda {
namespace {

// A line of `size` elements `step` apart, shared by `kLanes` threads: a warp if they are contiguous, else one thread.
template <int kLanes, typename T>
__device__ void normalize_line(const math::LineNorm& norm, int lane, int64_t size, int64_t step, const T* x, T* y) {
  T total = 0;
  for (int64_t i = lane; i < size; i += kLanes) total = norm.add(total, x[i * step]);
  if constexpr (kLanes > 1) {
    total = merge_warp(total, [](T a, T b) { return a + b; });
    total = __shfl_sync(gpu::kAllLanes, total, 0);
  }
  const T length = norm.finish(total);
  for (int64_t i = lane; i < size; i += kLanes) y[i * step] = norm.divide(x[i * step], length);
}

template <int kLanes, typename T>
__global__ void normalize_lines(int64_t lines, int64_t size, Divider inner, math::LineNorm norm, const Fault* guard,
                                const T* x, T* y) {
  if (stops(guard)) return;
  const int64_t line = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes, outer = inner.quotient(line);
  if (line >= lines) return;
  const int64_t first = outer * size * inner.divisor() + line - outer * inner.divisor();
  normalize_line<kLanes>(norm, static_cast<int>(threadIdx.x) % kLanes, size, inner.divisor(), x + first, y + first);
}

template <typename T>
__global__ void respond_locally(int64_t n, Divider by_plane, Divider by_channels, int64_t before, int64_t after,
                                math::LocalResponse<T> response, const T* x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t plane = by_plane.quotient(i), channels = by_channels.divisor();
  const int64_t c = plane - by_channels.quotient(plane) * channels;
  const int64_t first = c < before ? -c : -before, last = after < channels - 1 - c ? after : channels - 1 - c;
  T squares = 0;
  for (int64_t d = first; d <= last; ++d) {
    const T v = x[i + d * by_plane.divisor()];
    squares += v * v;
  }
  y[i] = response(x[i], squares);
}

}  // namespace

Prepared prepare_line_norm(const NodeSpec& spec) {
  if (spec.in_size() == 0) return {[](const Launch&) {}};
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    const AxisView view(spec.in_shape(), spec.node().attr("axis", -1));
    const math::LineNorm norm{spec.node().attr("p", 2) == 1};
    const int64_t lanes = view.inner == 1 ? gpu::kWarpSize : 1, lines = view.lines();
    const auto kernel = view.inner == 1 ? normalize_lines<gpu::kWarpSize, T> : normalize_lines<1, T>;
    return {[=, size = view.size, inner = Divider(view.inner)](const Launch& launch) {
              enqueue(launch, "normalize_lines", kernel, blocks_for(lines * lanes), kThreads, 0, lines, size, inner,
                      norm, guard_of(launch, 1, 1), launch.in<T>(0), launch.out<T>());
            },
            0,
            {{0, 0}}};
  });
}

Prepared prepare_local_response(const NodeSpec& spec) {
  const int64_t n = spec.in_size();
  if (n == 0) return {[](const Launch&) {}};
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    const AxisView view(spec.in_shape(), 1);
    const Neighbours near(spec.node());
    return {[=, by_plane = Divider(view.inner), by_channels = Divider(view.size), before = near.before,
             after = near.after, response = local_response<T>(spec.node())](const Launch& launch) {
      enqueue(launch, "respond_locally", respond_locally<T>, blocks_for(n), kThreads, 0, n, by_plane, by_channels,
              before, after, response, launch.in<T>(0), launch.out<T>());
    }};
  });
}

}  // namespace onnx_train::cuda
