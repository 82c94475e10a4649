// What the normalizations per channel and per group share on CUDA devices: sums over channels, and the element-wise
// passes that follow. The functions enqueue work for a run; the same inputs give the same bits.
//
// The elements of a channel are cut into pieces, so that few channels still fill the device. Each piece has its own
// sums in the workspace, which are merged in order.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/channels.h"

namespace onnx_train::cuda {

// Images [batch, channels, rest] with elements, as kernels read them. A plain value, made by the host.
struct ChannelPlan {
  int64_t batch, channels, rest;
  int64_t count;          // elements of a channel
  int64_t pieces, piece;  // of a channel, and elements of a piece
  Divider by_rest, by_channels;

  explicit ChannelPlan(const Channels& c)
      : batch(c.batch),
        channels(c.channels),
        rest(c.rest),
        count(c.per_channel()),
        by_rest(rest),
        by_channels(channels) {
    constexpr int64_t kBlocks = 1024, kLeast = 4096, kMost = 128;
    const int64_t blocks = is_short() ? (channels + 31) / 32 : channels;
    const int64_t least = is_short() ? kLeast / 32 : kLeast;
    pieces = blocks < kBlocks ? std::clamp<int64_t>(std::min(kBlocks / blocks, count / least), 1, kMost) : 1;
    piece = ((count + pieces - 1) / pieces + 3) / 4 * 4;  // whole vectors
    pieces = (count + piece - 1) / piece;
  }
  int64_t size() const { return channels * count; }
  int64_t partials() const { return channels * pieces; }
  // Whether neighbouring threads read neighbouring channels rather than neighbours in a row.
  bool is_short() const { return rest < 32 && channels > 1; }

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

// The sums of a channel from those of its pieces.
template <typename Sums>
__device__ Sums merge_pieces(const Sums* partials, int64_t channel, int64_t pieces) {
  Sums sums = partials[channel * pieces];
  for (int64_t p = 1; p < pieces; ++p) sums = Sums::merge(sums, partials[channel * pieces + p]);
  return sums;
}

// partials[channel][piece]. X, here and below, is the type in which elements are stored: float, double, or a type of 16
// bits (channel_sums.cu).
template <typename X>
void sum_moments(const Launch& launch, const ChannelPlan& plan, const X* x, Moments<Computed<X>>* partials);
template <typename X>
void sum_gradients(const Launch& launch, const ChannelPlan& plan, const X* x, const X* dy, const Computed<X>* mean,
                   GradientSums<Computed<X>>* partials);

// Values per channel. Null pointers stand for zeros.
template <typename T>
struct Scaling {
  const T *mean, *factor, *bias;
};
template <typename T>
struct Slopes {
  const T *mean, *a, *b, *c;
};

// y = (x - mean) factor + bias. y may be x, where elements have one size (channel_maps.cu).
template <typename X, typename Y>
void scale_channels(const Launch& launch, const ChannelPlan& plan, const Scaling<Computed<X>>& scaling,
                    const Fault* guard, const X* x, Y* y);
// dx = dy a - b - (x - mean) c. dx may be x or dy, where elements have one size.
template <typename X, typename DX>
void differentiate_channels(const Launch& launch, const ChannelPlan& plan, const Slopes<Computed<X>>& slopes,
                            const Fault* guard, const X* x, const X* dy, DX* dx);

// Calls f(X{}, Y{}) for the types in which input 0 and output 0, if there is one, are stored.
template <typename F>
Prepared dispatch_images(const NodeSpec& spec, const F& f) {
  return dispatch_stored_pair(spec.in_type(), spec.has_output(0) ? spec.out_type() : spec.in_type(), f);
}

// `places`, where an element of the output takes the place of an element of an input.
template <typename X, typename Y>
std::vector<InPlace> in_place(std::vector<InPlace> places) {
  return sizeof(X) == sizeof(Y) ? std::move(places) : std::vector<InPlace>();
}

// The workspace of a node: sums, then values per channel.
template <typename Sums>
struct ChannelWorkspace {
  int64_t sums, values;
  size_t bytes() const {
    return static_cast<size_t>(sums) * sizeof(Sums) + static_cast<size_t>(values) * sizeof(double);
  }
  // Values of type T, channels of them each.
  template <typename T>
  T* value(const Launch& launch) const {
    return reinterpret_cast<T*>(launch.scratch<Sums>() + sums);
  }
};

}  // namespace onnx_train::cuda
