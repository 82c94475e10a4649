// Batch normalization in inference and training, and its gradients, alone or with the Relu, or Add and Relu, after it:
// sums per channel, a small kernel that finishes them with one warp per channel, and an element-wise pass.
#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/normalization/normalization.h"
#include "kernels/cuda/support/rows.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
__device__ T factor_of(T scale, double variance, double epsilon) {
  return static_cast<T>(static_cast<double>(scale) * math::inverse_deviation(variance, epsilon));
}

template <typename T>
__global__ void find_factors(int64_t channels, double epsilon, const T* scale, const T* variance, T* factor) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c < channels) factor[c] = factor_of(scale[c], static_cast<double>(variance[c]), epsilon);
}

// A warp has one channel.
using ChannelThreads = RowThreads<gpu::kWarpSize>;

template <typename T>
__global__ void finish_moments(ChannelPlan plan, double epsilon, const Moments<T>* partials, const T* scale, T* mean,
                               T* variance, T* factor) {
  const int64_t c = ChannelThreads::row();
  if (c >= plan.channels) return;
  const Moments<T> moments = merge_pieces<ChannelThreads>(partials, c, plan.pieces);
  if (ChannelThreads::first() != 0) return;
  const double square = static_cast<double>(moments.square) / static_cast<double>(plan.count);
  mean[c] = moments.mean;
  variance[c] = static_cast<T>(square);
  factor[c] = factor_of(scale[c], square, epsilon);
}

// Outputs of a channel's gradients; unwanted ones are null.
template <typename T>
struct GradientResults {
  T *dscale, *dbias, *a, *b, *c;
};

// With frozen statistics dx = dy a; otherwise dx = (dy - Σ dy / n - (x - mean) Σ dy (x - mean) / n / (variance +
// epsilon)) a.
template <typename T>
__global__ void finish_gradient(ChannelPlan plan, double epsilon, bool frozen, const GradientSums<T>* partials,
                                const T* scale, const T* variance, GradientResults<T> results) {
  const int64_t c = ChannelThreads::row();
  if (c >= plan.channels) return;
  const GradientSums<T> sums = partials ? merge_pieces<ChannelThreads>(partials, c, plan.pieces) : GradientSums<T>{};
  if (ChannelThreads::first() != 0) return;
  const double inverse = math::inverse_deviation(static_cast<double>(variance[c]), epsilon);
  const double factor = static_cast<double>(scale[c]) * inverse;
  results.a[c] = static_cast<T>(factor);
  if (!partials) return;
  const double first = static_cast<double>(sums.first), second = static_cast<double>(sums.second);
  if (results.dscale) results.dscale[c] = static_cast<T>(second * inverse);
  if (results.dbias) results.dbias[c] = sums.first;
  if (frozen) return;
  const double n = static_cast<double>(plan.count);
  results.b[c] = static_cast<T>(first / n * factor);
  results.c[c] = static_cast<T>(second / n * inverse * inverse * factor);
}

// Fills every output with one byte value, because there is nothing to normalize.
Prepared prepare_empty(const NodeSpec& spec, int byte) {
  std::vector<std::pair<int, size_t>> fills;
  for (int o = 0; o < spec.num_outputs(); ++o) {
    if (spec.has_output(o)) fills.emplace_back(o, static_cast<size_t>(spec.out_size(o)) * size_of(spec.out_type(o)));
  }
  return {[fills, byte](const Launch& launch) {
    for (const auto& [output, bytes] : fills) set_bytes(launch, launch.outputs[output], byte, bytes);
  }};
}
constexpr int kZeros = 0, kNaNs = 0xff;  // all bits of a NaN may be set

// Returns the epilogue of the normalization, without the residual.
template <typename X>
AfterScaling<X> after_scaling(const NodeSpec& spec) {
  const auto round_to = static_cast<DType>(spec.node().attr("round_to", static_cast<int>(DType::kFloat)));
  return {nullptr, has_step(spec.node(), EpilogueStep::kRelu), round_to};
}

// Images are stored as X and Y; per-channel values have the type of the computation.
template <typename X, typename Y, typename T = Computed<X>>
Prepared prepare_inference(const NodeSpec& spec) {
  const Channels channels(spec.in_shape(0));
  if (channels.size() == 0) return prepare_empty(spec, kZeros);
  const ChannelPlan plan(channels);
  const double epsilon = spec.node().attr("epsilon", kEpsilon);
  const int inputs = spec.num_inputs(), outputs = spec.num_outputs();
  const int residual = input_at(spec.node(), "residual");
  const auto run = [=, after = after_scaling<X>(spec)](const Launch& launch) {
    T* factor = launch.scratch<T>();
    enqueue_each(launch, "find_factors", find_factors<T>, plan.channels, epsilon, launch.in<T>(1), launch.in<T>(4),
                 factor);
    scale_channels<X, Y>(launch, plan, {launch.in<T>(3), factor, launch.in<T>(2)},
                         after.with(residual >= 0 ? launch.in<X>(residual) : nullptr),
                         guard_of(launch, inputs, outputs), launch.in<X>(0), launch.out<Y>());
  };
  std::vector<InPlace> places = {{0, 0}};
  if (residual >= 0) places.push_back({0, residual});
  return {run, static_cast<size_t>(plan.channels) * sizeof(T), in_place<X, Y>(std::move(places))};
}

template <typename X, typename Y, typename T = Computed<X>>
Prepared prepare_train(const NodeSpec& spec) {
  const Channels channels(spec.in_shape(0));
  if (channels.size() == 0) return prepare_empty(spec, kNaNs);
  const ChannelPlan plan(channels);
  const ChannelWorkspace<Moments<T>> workspace{plan.partials(), 3 * plan.channels};
  const double epsilon = spec.node().attr("epsilon", kEpsilon);
  const bool has_y = spec.has_output(0), has_mean = spec.has_output(1), has_variance = spec.has_output(2);
  const int inputs = spec.num_inputs(), outputs = spec.num_outputs();
  const int residual = input_at(spec.node(), "residual");
  const auto run = [=, after = after_scaling<X>(spec)](const Launch& launch) {
    auto* partials = launch.scratch<Moments<T>>();
    T* factor = workspace.template value<T>(launch);
    T* mean = has_mean ? launch.out<T>(1) : factor + plan.channels;
    T* variance = has_variance ? launch.out<T>(2) : factor + 2 * plan.channels;
    sum_moments(launch, plan, launch.in<X>(0), partials);
    enqueue(launch, "finish_moments", finish_moments<T>, row_blocks<gpu::kWarpSize>(plan.channels), kThreads, 0, plan,
            epsilon, partials, launch.in<T>(1), mean, variance, factor);
    if (has_y) {
      scale_channels<X, Y>(launch, plan, {mean, factor, launch.in<T>(2)},
                           after.with(residual >= 0 ? launch.in<X>(residual) : nullptr),
                           guard_of(launch, inputs, outputs), launch.in<X>(0), launch.out<Y>());
    }
  };
  return {run, workspace.bytes(),
          in_place<X, Y>(residual >= 0 ? std::vector<InPlace>{{0, residual}} : std::vector<InPlace>())};
}

template <typename X, typename DX, typename T = Computed<X>>
Prepared prepare_gradient(const NodeSpec& spec, bool frozen) {
  const Channels channels(spec.in_shape(0));
  if (channels.size() == 0) return prepare_empty(spec, kZeros);
  const ChannelPlan plan(channels);
  const ChannelWorkspace<GradientSums<T>> workspace{plan.partials(), 3 * plan.channels};
  const double epsilon = spec.node().attr("epsilon", kEpsilon);
  const bool has_dx = spec.has_output(0), has_dscale = spec.has_output(1), has_dbias = spec.has_output(2);
  const bool sums = !frozen || has_dscale || has_dbias;
  // With Relu, its operand's gradient is stored if it is an output; otherwise each pass computes it again.
  const int y = input_at(spec.node(), "y"), dz = output_at(spec.node(), "dz");
  const int inputs = spec.num_inputs(), outputs = spec.num_outputs();
  const auto run = [=](const Launch& launch) {
    const X* x = launch.in<X>(0);
    Rectified<X> gradient{launch.in<X>(4)};
    if (y >= 0) gradient.y = launch.in<X>(y);
    if (dz >= 0) gradient.dz = launch.out<X>(dz);
    const Fault* guard = guard_of(launch, inputs, outputs);
    const T* mean = launch.in<T>(2);
    auto* partials = sums ? launch.scratch<GradientSums<T>>() : nullptr;
    T *a = workspace.template value<T>(launch), *b = a + plan.channels, *c = b + plan.channels;
    if (sums) sum_gradients(launch, plan, x, gradient, mean, guard, partials);
    if (dz >= 0) gradient = {gradient.dz};
    const GradientResults<T> results{has_dscale ? launch.out<T>(1) : nullptr, has_dbias ? launch.out<T>(2) : nullptr, a,
                                     b, c};
    enqueue(launch, "finish_gradient", finish_gradient<T>, row_blocks<gpu::kWarpSize>(plan.channels), kThreads, 0, plan,
            epsilon, frozen, partials, launch.in<T>(1), launch.in<T>(3), results);
    if (!has_dx) return;
    const Slopes<T> slopes = frozen ? Slopes<T>{nullptr, a, nullptr, nullptr} : Slopes<T>{mean, a, b, c};
    differentiate_channels(launch, plan, slopes, guard, x, gradient, launch.out<DX>());
  };
  std::vector<InPlace> places = in_place<X, DX>({{0, 4}, {0, 0}});
  if (dz >= 0) places = {{dz, 4}};
  return {run, workspace.bytes(), places};
}

}  // namespace

Prepared prepare_batch_inference(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) { return prepare_inference<X, Y>(spec); });
}

Prepared prepare_batch_train(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) { return prepare_train<X, Y>(spec); });
}

Prepared prepare_batch_gradient(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) { return prepare_gradient<X, Y>(spec, false); });
}

Prepared prepare_batch_frozen_gradient(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) { return prepare_gradient<X, Y>(spec, true); });
}

}  // namespace onnx_train::cuda
