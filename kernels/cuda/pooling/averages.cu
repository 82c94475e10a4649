// AveragePool, its gradient and LpPool, one thread per element of the result. Elements are stored as S, results as Y.
#include "kernels/cuda/pooling/pools.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/math/pools.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
struct Average {
  __device__ T add(T sum, T x) const { return sum + x; }
  __device__ T finish(T sum, const PoolPlan& plan, const PlacedElement& window) const {
    const int64_t count = averaged_count(plan.axes[0], window.z, plan.include_pad) *
                          averaged_count(plan.axes[1], window.y, plan.include_pad) *
                          averaged_count(plan.axes[2], window.x, plan.include_pad);
    return math::average(sum, count);
  }
};

template <typename T>
struct Norm {
  math::PNorm<T> norm;
  __device__ T add(T sum, T x) const { return norm.add(sum, x); }
  __device__ T finish(T sum, const PoolPlan&, const PlacedElement&) const { return norm.finish(sum); }
};

template <typename Op, typename S, typename Y>
__global__ void pool(int64_t n, PoolPlan plan, PlaneIndexing outputs, Op op, const S* __restrict__ x, Y* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement window = outputs.element(i);
  const PlaneElements<S> plane{x + outputs.start(window, plan.in_size), outputs.step};
  Computed<S> sum = 0;
  for_each_element(plan.axes, span_of(plan.axes[0], window.z), span_of(plan.axes[1], window.y),
                   span_of(plan.axes[2], window.x), [&](int64_t element) { sum = op.add(sum, plane[element]); });
  y[i] = math::convert<Y>(op.finish(sum, plan, window));
}

// dx[q] = Σ dy / count over the windows that read q.
template <typename S, typename Y>
__global__ void average_pool_grad(int64_t n, PoolPlan plan, PlaneIndexing inputs, const S* __restrict__ dy, Y* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement to = inputs.element(i);
  const auto& [depth, height, width] = plan.axes;
  const int64_t last_z = depth.last_window(to.z), last_y = height.last_window(to.y), last_x = width.last_window(to.x);
  const PlaneElements<S> plane{dy + inputs.start(to, plan.out_size), inputs.step};
  Computed<S> sum = 0;
  for (int64_t z = depth.first_window(to.z); z < last_z; ++z) {
    if (!depth.reads(z, to.z)) continue;
    const int64_t plane_count = averaged_count(depth, z, plan.include_pad);
    for (int64_t y = height.first_window(to.y); y < last_y; ++y) {
      if (!height.reads(y, to.y)) continue;
      const int64_t line_count = plane_count * averaged_count(height, y, plan.include_pad);
      const int64_t line = (z * height.out + y) * width.out;
      for (int64_t x = width.first_window(to.x); x < last_x; ++x) {
        if (width.reads(x, to.x))
          sum += math::average(plane[line + x], line_count * averaged_count(width, x, plan.include_pad));
      }
    }
  }
  dx[i] = math::convert<Y>(sum);
}

template <typename Op, typename S, typename Y>
Prepared prepare(const NodeSpec& spec, const Op& op) {
  const Pooling pooling =
      find_pooling(spec, channels_first(spec, spec.in_shape()), channels_first(spec, spec.out_shape()));
  const int64_t n = spec.out_size();
  if (n == 0) return {[](const Launch&) {}};
  return {
      [=, plan = PoolPlan(pooling), outputs = out_planes(pooling.geometry, plane_step(spec))](const Launch& launch) {
        enqueue_each(launch, "pool", pool<Op, S, Y>, n, plan, outputs, op, launch.in<S>(0), launch.out<Y>());
      }};
}

}  // namespace

Prepared prepare_average_pool(const NodeSpec& spec) {
  return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename Y>(S, Y) {
    return prepare<Average<Computed<S>>, S, Y>(spec, {});
  });
}

Prepared prepare_lp_pool(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&]<typename T>(T) {
    return prepare<Norm<T>, T, T>(spec, {{static_cast<T>(spec.node().attr("p", 2))}});
  });
}

Prepared prepare_average_pool_grad(const NodeSpec& spec) {
  const Pooling pooling =
      find_pooling(spec, channels_first(spec, spec.out_shape()), channels_first(spec, spec.in_shape(0)));
  const int64_t n = spec.out_size();
  if (n == 0) return {[](const Launch&) {}};
  return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename Y>(S, Y) -> Prepared {
    return {
        [=, plan = PoolPlan(pooling), inputs = in_planes(pooling.geometry, plane_step(spec))](const Launch& launch) {
          enqueue_each(launch, "average_pool_grad", average_pool_grad<S, Y>, n, plan, inputs, launch.in<S>(0),
                       launch.out<Y>());
        }};
  });
}

}  // namespace onnx_train::cuda
