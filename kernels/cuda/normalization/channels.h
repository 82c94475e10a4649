// Sums over channels, and the element-wise passes that follow, for normalizations per channel and per group. The
// functions enqueue work for a run; the same inputs give the same bits.
//
// The elements of a channel are cut into pieces, so that few channels still fill the device. Each piece has its own
// sums in the workspace, which are merged in order.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/row_threads.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/channels.h"

namespace onnx_train::cuda {

// Images [batch, channels, rest], not empty, as kernels read them: `pack` neighbours at a time, which belong to one
// channel or, with channels last, to neighbouring channels. The plan does not depend on element types, so sums have one
// order for all types. A plain value, made by the host.
struct ChannelPlan {
  int64_t batch, channels, rest;
  int64_t count;          // elements of a channel
  int64_t pieces, piece;  // pieces of a channel, and elements of a piece
  int pack;
  int columns;  // threads of a block that read neighbouring channels; 0: they read a channel's elements
  Divider by_rest, by_channels;

  explicit ChannelPlan(const Channels& c)
      : batch(c.batch),
        channels(c.channels),
        rest(c.rest),
        count(c.per_channel()),
        by_rest(rest),
        by_channels(channels) {
    const bool is_short = rest < gpu::kWarpSize && channels > 1;
    pack = is_short && rest > 1                     ? 1
           : is_last() && channels % 8 == 0         ? 8
           : (is_last() ? channels : rest) % 4 == 0 ? 4
                                                    : 1;
    columns = 0;
    if (is_short) {
      columns = 1;
      while (columns < gpu::kWarpSize && columns * pack < channels) columns *= 2;
    }
    constexpr int64_t kBlocks = 1024, kMost = 512;
    const int64_t least = columns > 0 ? 8 * (kThreads / columns) : 4096;  // least elements of a channel per block
    pieces = channel_blocks() < kBlocks
                 ? std::clamp<int64_t>(std::min(kBlocks / channel_blocks(), count / least), 1, kMost)
                 : 1;
    piece = ((count + pieces - 1) / pieces + pack - 1) / pack * pack;
    pieces = (count + piece - 1) / piece;
  }
  int64_t size() const { return channels * count; }
  int64_t partials() const { return channels * pieces; }
  // Whether neighbours in memory belong to neighbouring channels.
  bool is_last() const { return rest == 1 && channels > 1; }
  // The shape of a block; neighbouring threads follow x.
  dim3 block() const {
    return columns > 0 ? dim3(static_cast<unsigned>(columns), static_cast<unsigned>(kThreads / columns)) : kThreads;
  }
  // Blocks along the axis of channels.
  int64_t channel_blocks() const { return columns > 0 ? (channels + columns * pack - 1) / (columns * pack) : channels; }

  // The offset of element e of a channel, counted over all images.
  __device__ int64_t offset(int64_t channel, int64_t e) const {
    const int64_t image = by_rest.quotient(e);
    return (image * channels + channel) * rest + e - image * rest;
  }
};

// The number of some elements, their mean, and Σ (x - mean)².
template <typename T>
struct Moments {
  T count, mean, square;

  __device__ static Moments merge(const Moments& a, const Moments& b) {
    if (b.count == 0) return a;
    if (a.count == 0) return b;
    const T count = a.count + b.count, share = b.count / count, way = b.mean - a.mean;
    return {count, a.mean + way * share, a.square + b.square + way * way * a.count * share};
  }
};

// Σ dy and Σ dy (x - mean).
template <typename T>
struct GradientSums {
  T first, second;

  __device__ static GradientSums merge(const GradientSums& a, const GradientSums& b) {
    return {a.first + b.first, a.second + b.second};
  }
};

// Merges the sums of a channel's pieces with the threads that share it (row_threads.h); each gets the result.
template <typename Threads, typename Sums>
__device__ Sums merge_pieces(const Sums* partials, int64_t channel, int64_t pieces) {
  Sums sums = {};
  for (int64_t p = Threads::first(); p < pieces; p += Threads::kCount) {
    sums = Sums::merge(sums, partials[channel * pieces + p]);
  }
  return Threads::merge(sums, Sums::merge);
}

// partials[channel][piece]. In this header elements are stored as X: float, double, or a 16-bit type (channel_sums.cu).
template <typename X>
void sum_moments(const Launch& launch, const ChannelPlan& plan, const X* x, Moments<Computed<X>>* partials);

// dy if y = relu(..) is positive or y is null, else 0. It is stored in dz unless dz is null.
template <typename X>
struct Rectified {
  const X *dy, *y = nullptr;
  X* dz = nullptr;
};
template <typename X>
void sum_gradients(const Launch& launch, const ChannelPlan& plan, const X* x, const Rectified<X>& gradient,
                   const Computed<X>* mean, const Fault* guard, GradientSums<Computed<X>>* partials);

// Per-channel values; null pointers mean zeros.
template <typename T>
struct Scaling {
  const T *mean, *factor, *bias;
};
template <typename T>
struct Slopes {
  const T *mean, *a, *b, *c;
};

// The epilogue of a normalization: adds a residual, which may be null, then Relu. Results before Relu are rounded to
// `round_to`, unless it is float32.
template <typename X>
struct AfterScaling {
  const X* residual = nullptr;
  bool relu = false;
  DType round_to = DType::kFloat;

  AfterScaling with(const X* other_residual) const { return {other_residual, relu, round_to}; }
};

// y = (x - mean) factor + bias, then the epilogue. y may be x or the residual if elements have one size
// (channel_maps.cu).
template <typename X, typename Y>
void scale_channels(const Launch& launch, const ChannelPlan& plan, const Scaling<Computed<X>>& scaling,
                    const AfterScaling<X>& after, const Fault* guard, const X* x, Y* y);
// dx = dy a - b - (x - mean) c. dx may be x, dy or y if elements have one size.
template <typename X, typename DX>
void differentiate_channels(const Launch& launch, const ChannelPlan& plan, const Slopes<Computed<X>>& slopes,
                            const Fault* guard, const X* x, const Rectified<X>& gradient, DX* dx);

// Calls f(X{}, Y{}) for the types of input 0 and of output 0; the latter is X if the output is absent.
template <typename F>
Prepared dispatch_images(const NodeSpec& spec, const F& f) {
  return dispatch_stored_pair(spec.in_type(), spec.has_output(0) ? spec.out_type() : spec.in_type(), f);
}

// Returns `places` if X and Y have one size, else nothing.
template <typename X, typename Y>
std::vector<InPlace> in_place(std::vector<InPlace> places) {
  return sizeof(X) == sizeof(Y) ? std::move(places) : std::vector<InPlace>();
}

// The workspace of a node: sums, then per-channel values.
template <typename Sums>
struct ChannelWorkspace {
  int64_t sums, values;
  size_t bytes() const {
    return static_cast<size_t>(sums) * sizeof(Sums) + static_cast<size_t>(values) * sizeof(double);
  }
  // Values of type T, `channels` numbers each.
  template <typename T>
  T* value(const Launch& launch) const {
    return reinterpret_cast<T*>(launch.scratch<Sums>() + sums);
  }
};

}  // namespace onnx_train::cuda
