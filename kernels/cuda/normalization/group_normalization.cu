// GroupNormalization, InstanceNormalization and their gradient. For the statistics, a group is one channel of a single
// image [1, groups, elements of a group]. For the element-wise passes, every channel of every image is a channel of [1,
// batch channels, rest]; small kernels compute its values, one thread per channel.
#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/normalization/normalization.h"

namespace onnx_train::cuda {
namespace {

using OneThread = RowThreads<1>;

// The index map of channels; i counts channels over all images.
struct GroupPlan {
  int64_t batch, channels, per_group, group_size;
  Divider by_channels, by_group;

  explicit GroupPlan(const Groups& g)
      : batch(g.batch),
        channels(g.channels),
        per_group(g.per_group),
        group_size(g.group_size()),
        by_channels(channels),
        by_group(per_group) {}
  __device__ int64_t group(int64_t i) const { return by_group.quotient(i); }
  __device__ int64_t channel(int64_t i) const { return i - by_channels.quotient(i) * channels; }
};

// Writes the mean and 1 / sqrt(variance + epsilon) of the group of channel i, for every i.
template <typename T>
__global__ void finish_groups(int64_t n, GroupPlan plan, int64_t pieces, double epsilon, const Moments<T>* partials,
                              T* mean, double* inverse) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const Moments<T> moments = merge_pieces<OneThread>(partials, plan.group(i), pieces);
  mean[i] = moments.mean;
  inverse[i] =
      math::inverse_deviation(static_cast<double>(moments.square) / static_cast<double>(plan.group_size), epsilon);
}

template <typename T>
__global__ void spread_values(int64_t n, GroupPlan plan, const double* inverse, const T* scale, const T* bias,
                              T* factors, T* biases) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t c = plan.channel(i);
  factors[i] = static_cast<T>(inverse[i] * static_cast<double>(scale[c]));
  biases[i] = bias[c];
}

// With g = dy scale and n elements in a group: dx = (g - Σ g / n - x̂ Σ g x̂ / n) inverse. Channel i's dx is dy a - b -
// (x - mean) c. One thread per group.
template <typename T>
__global__ void find_slopes(int64_t groups, GroupPlan plan, int64_t pieces, const GradientSums<T>* partials,
                            const T* scale, const double* inverse, T* a, T* b, T* c) {
  const int64_t group = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (group >= groups) return;
  const int64_t first = group * plan.per_group, first_channel = plan.channel(first);
  const double deviation = inverse[first], n = static_cast<double>(plan.group_size);
  double sum = 0, along = 0;
  for (int64_t k = 0; k < plan.per_group; ++k) {
    const GradientSums<T> sums = merge_pieces<OneThread>(partials, first + k, pieces);
    const double weight = static_cast<double>(scale[first_channel + k]);
    sum += weight * static_cast<double>(sums.first);
    along += weight * static_cast<double>(sums.second) * deviation;
  }
  for (int64_t k = 0; k < plan.per_group; ++k) {
    a[first + k] = static_cast<T>(static_cast<double>(scale[first_channel + k]) * deviation);
    b[first + k] = static_cast<T>(sum / n * deviation);
    c[first + k] = static_cast<T>(along / n * deviation * deviation);
  }
}

// dscale = Σ dy x̂ and dbias = Σ dy over all images. One thread per channel.
template <typename T>
__global__ void sum_images(GroupPlan plan, int64_t pieces, const GradientSums<T>* partials, const double* inverse,
                           T* dscale, T* dbias) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= plan.channels) return;
  double first = 0, second = 0;
  for (int64_t n = 0; n < plan.batch; ++n) {
    const int64_t i = n * plan.channels + c;
    const GradientSums<T> sums = merge_pieces<OneThread>(partials, i, pieces);
    first += static_cast<double>(sums.first);
    second += static_cast<double>(sums.second) * inverse[i];
  }
  if (dscale) dscale[c] = static_cast<T>(second);
  if (dbias) dbias[c] = static_cast<T>(first);
}

// The common plan of forward and gradient. The workspace holds moments, the inverse deviation of each channel of each
// image, gradient sums, and four values of type T.
template <typename X>
struct Plans {
  using T = Computed<X>;

  GroupPlan groups;
  ChannelPlan of_groups, of_channels;
  double epsilon;

  Plans(const NodeSpec& spec, const Groups& g)
      : groups(g),
        of_groups(Channels(1, g.count(), g.group_size())),
        of_channels(Channels(1, g.batch * g.channels, g.rest)),
        epsilon(spec.node().attr("epsilon", kEpsilon)) {}

  int64_t channels() const { return of_channels.channels; }  // channels of all images
  struct Workspace {
    double* inverse;
    Moments<T>* moments;
    GradientSums<T>* sums;
    T* values[4];
  };
  Workspace workspace(const Launch& launch) const {
    Workspace w;
    w.inverse = launch.scratch<double>();
    w.moments = reinterpret_cast<Moments<T>*>(w.inverse + channels());
    w.sums = reinterpret_cast<GradientSums<T>*>(w.moments + of_groups.partials());
    for (int k = 0; k < 4; ++k) w.values[k] = reinterpret_cast<T*>(w.sums + of_channels.partials()) + k * channels();
    return w;
  }
  size_t bytes() const {
    return static_cast<size_t>(channels()) * (sizeof(double) + 4 * sizeof(T)) +
           static_cast<size_t>(of_groups.partials()) * sizeof(Moments<T>) +
           static_cast<size_t>(of_channels.partials()) * sizeof(GradientSums<T>);
  }
  // Computes values[0], the means, and `inverse`.
  Workspace find_statistics(const Launch& launch) const {
    const Workspace w = workspace(launch);
    sum_moments(launch, of_groups, launch.in<X>(0), w.moments);
    enqueue_each(launch, "finish_groups", finish_groups<T>, channels(), groups, of_groups.pieces, epsilon, w.moments,
                 w.values[0], w.inverse);
    return w;
  }
};

// Images are stored as X and Y; per-channel values have the type of the computation.
template <typename X, typename Y, typename T = Computed<X>>
Prepared prepare_forward(const NodeSpec& spec) {
  const Groups g(spec);
  if (g.size() == 0) return {[](const Launch&) {}};
  const Plans<X> plans(spec, g);
  const int inputs = spec.num_inputs(), outputs = spec.num_outputs();
  const auto run = [=](const Launch& launch) {
    const auto w = plans.find_statistics(launch);
    enqueue_each(launch, "spread_values", spread_values<T>, plans.channels(), plans.groups, w.inverse, launch.in<T>(1),
                 launch.in<T>(2), w.values[1], w.values[2]);
    scale_channels<X, Y>(launch, plans.of_channels, {w.values[0], w.values[1], w.values[2]}, {},
                         guard_of(launch, inputs, outputs), launch.in<X>(0), launch.out<Y>());
  };
  return {run, plans.bytes(), in_place<X, Y>({{0, 0}})};
}

template <typename X, typename DX, typename T = Computed<X>>
Prepared prepare_gradient(const NodeSpec& spec) {
  const Groups g(spec);
  const bool has_dx = spec.has_output(0), has_dscale = spec.has_output(1), has_dbias = spec.has_output(2);
  if (g.size() == 0) {
    return {[=, bytes = static_cast<size_t>(g.channels) * sizeof(T)](const Launch& launch) {
      for (int o = 1; o < 3; ++o) {
        if (o == 1 ? has_dscale : has_dbias) set_bytes(launch, launch.outputs[o], 0, bytes);
      }
    }};
  }
  const Plans<X> plans(spec, g);
  const int inputs = spec.num_inputs(), outputs = spec.num_outputs();
  const auto run = [=, groups = g.count()](const Launch& launch) {
    const X *x = launch.in<X>(0), *dy = launch.in<X>(2);
    const T* scale = launch.in<T>(1);
    const auto w = plans.find_statistics(launch);
    const int64_t pieces = plans.of_channels.pieces;
    sum_gradients(launch, plans.of_channels, x, {dy}, w.values[0], nullptr, w.sums);
    enqueue(launch, "sum_images", sum_images<T>, blocks_for(plans.groups.channels), kThreads, 0, plans.groups, pieces,
            w.sums, w.inverse, has_dscale ? launch.out<T>(1) : nullptr, has_dbias ? launch.out<T>(2) : nullptr);
    if (!has_dx) return;
    enqueue_each(launch, "find_slopes", find_slopes<T>, groups, plans.groups, pieces, w.sums, scale, w.inverse,
                 w.values[1], w.values[2], w.values[3]);
    differentiate_channels(launch, plans.of_channels, {w.values[0], w.values[1], w.values[2], w.values[3]},
                           guard_of(launch, inputs, outputs), x, {dy}, launch.out<DX>());
  };
  return {run, plans.bytes(), in_place<X, DX>({{0, 2}, {0, 0}})};
}

}  // namespace

Prepared prepare_groups(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) { return prepare_forward<X, Y>(spec); });
}

Prepared prepare_groups_gradient(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) { return prepare_gradient<X, Y>(spec); });
}

}  // namespace onnx_train::cuda
