// MaxPool and its gradient, one thread per element of the result. Elements are stored as S, results as Y.
#include <limits>

#include "kernels/cuda/pooling/pools.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

// Returns the position in the plane of the largest element of a window, or -1.
template <typename S>
__device__ int64_t largest_of(const WindowGeometry& axes, const PlacedElement& window, const PlaneElements<S>& plane) {
  return find_largest(axes, plane, span_of(axes[0], window.z), span_of(axes[1], window.y), span_of(axes[2], window.x));
}

// If `index` is not null, it receives positions in x, in column-major planes if `columns` is true.
template <typename S, typename Y>
__global__ void max_pool(int64_t n, PoolPlan plan, PlaneIndexing outputs, bool columns, const S* __restrict__ x, Y* y,
                         int64_t* index) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement window = outputs.element(i);
  const int64_t start = outputs.start(window, plan.in_size);
  const PlaneElements<S> plane{x + start, outputs.step};
  const int64_t best = largest_of(plan.axes, window, plane);
  y[i] = math::convert<Y>(best < 0 ? std::numeric_limits<Computed<S>>::lowest() : plane[best]);
  if (!index) return;  // only nodes with channels first have indices
  const int64_t element = best < 0 ? 0 : best;
  index[i] = start + (columns ? by_columns(plan.axes, element) : element);
}

// positions[window] = the position in its plane of the window's largest element, or -1.
template <typename S>
__global__ void find_maxima(int64_t n, PoolPlan plan, PlaneIndexing outputs, const S* __restrict__ x,
                            int64_t* positions) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement window = outputs.element(i);
  positions[i] = largest_of(plan.axes, window, PlaneElements<S>{x + outputs.start(window, plan.in_size), outputs.step});
}

// dx[q] = Σ dy over the windows whose largest element is q.
template <typename S, typename Y>
__global__ void max_pool_grad(int64_t n, PoolPlan plan, PlaneIndexing inputs, const S* __restrict__ dy,
                              const int64_t* __restrict__ positions, Y* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement to = inputs.element(i);
  const auto& [depth, height, width] = plan.axes;
  const int64_t element = (to.z * height.in + to.y) * width.in + to.x, plane = inputs.start(to, plan.out_size);
  const int64_t last_z = depth.last_window(to.z), last_y = height.last_window(to.y), last_x = width.last_window(to.x);
  Computed<S> sum = 0;
  for (int64_t z = depth.first_window(to.z); z < last_z; ++z) {
    for (int64_t y = height.first_window(to.y); y < last_y; ++y) {
      const int64_t line = (z * height.out + y) * width.out;
      for (int64_t x = width.first_window(to.x); x < last_x; ++x) {
        const int64_t window = plane + (line + x) * inputs.step;
        if (positions[window] == element) sum += widened(dy[window]);
      }
    }
  }
  dx[i] = math::convert<Y>(sum);
}

template <typename S, typename Y = S>
Prepared prepare(const NodeSpec& spec) {
  const Pooling pool =
      find_pooling(spec, channels_first(spec, spec.in_shape()), channels_first(spec, spec.out_shape()));
  const int64_t n = spec.out_size();
  if (n == 0) return {[](const Launch&) {}};
  const bool indices = spec.has_output(1), columns = spec.node().attr("storage_order", 0) != 0;
  return {[=, plan = PoolPlan(pool), outputs = out_planes(pool.geometry, plane_step(spec))](const Launch& launch) {
    enqueue_each(launch, "max_pool", max_pool<S, Y>, n, plan, outputs, columns, launch.in<S>(0), launch.out<Y>(),
                 indices ? launch.out<int64_t>(1) : nullptr);
  }};
}

template <typename S, typename Y>
Prepared prepare_grad(const NodeSpec& spec) {
  const Pooling pool =
      find_pooling(spec, channels_first(spec, spec.in_shape(1)), channels_first(spec, spec.in_shape(0)));
  const int64_t n = spec.out_size(), windows = spec.in_size(0);
  if (n == 0) return {[](const Launch&) {}};
  const PoolPlan plan(pool);
  std::function<void(const Launch&)> find = [](const Launch&) {};
  if (windows > 0) {
    find = [=, outputs = out_planes(pool.geometry, plane_step(spec))](const Launch& launch) {
      enqueue_each(launch, "find_maxima", find_maxima<S>, windows, plan, outputs, launch.in<S>(1),
                   launch.scratch<int64_t>());
    };
  }
  return {[=, inputs = in_planes(pool.geometry, plane_step(spec))](const Launch& launch) {
            find(launch);
            enqueue_each(launch, "max_pool_grad", max_pool_grad<S, Y>, n, plan, inputs, launch.in<S>(0),
                         launch.scratch<int64_t>(), launch.out<Y>());
          },
          static_cast<size_t>(windows) * sizeof(int64_t)};
}

}  // namespace

Prepared prepare_max_pool(const NodeSpec& spec) {
  switch (spec.in_type()) {
    case DType::kInt8: return prepare<int8_t>(spec);
    case DType::kUint8: return prepare<uint8_t>(spec);
    default:
      return dispatch_stored_pair(spec.in_type(), spec.out_type(),
                                  [&]<typename S, typename Y>(S, Y) { return prepare<S, Y>(spec); });
  }
}

Prepared prepare_max_pool_grad(const NodeSpec& spec) {
  if (spec.out_shape() != spec.in_shape(1)) fail(spec.node().label(), ": dx must be as large as x");
  return dispatch_stored_pair(spec.in_type(), spec.out_type(),
                              [&]<typename S, typename Y>(S, Y) { return prepare_grad<S, Y>(spec); });
}

}  // namespace onnx_train::cuda
