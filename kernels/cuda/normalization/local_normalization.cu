// Normalization over the neighbours of an element: LpNormalization along an axis, LRN over neighbouring channels.
#include "kernels/cuda/normalization/normalization.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/channels.h"

namespace onnx_train::cuda {
namespace {

// y may be x.
template <int kRowThreads, typename T>
__global__ void normalize_lines(AxisView view, math::LineNorm norm, const Fault* guard, const T* x, T* y) {
  using Threads = RowThreads<kRowThreads>;
  if (stops(guard) || Threads::row() >= view.lines()) return;
  const int64_t line = view.line(Threads::row());
  T total = 0;
  for_each_in_row<kRowThreads>(x, line, view.size, view.inner,
                               [&](int64_t, T value) { total = norm.add(total, value); });
  const T length = norm.finish(Threads::merge(total, Sum()));
  transform_row<kRowThreads>(x, y, line, view.size, view.inner,
                             [&](int64_t, T value) { return norm.divide(value, length); });
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
    return {[=](const Launch& launch) {
              enqueue_lines<T>(
                  launch, "normalize_lines", view, [](auto threads) { return normalize_lines<threads(), T>; }, view,
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
      enqueue_each(launch, "respond_locally", respond_locally<T>, n, by_plane, by_channels, before, after, response,
                   launch.in<T>(0), launch.out<T>());
    }};
  });
}

}  // namespace onnx_train::cuda
