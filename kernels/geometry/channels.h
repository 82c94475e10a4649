// Normalizations per channel and per group of channels, for the kernels of every device. Plain values and pure
// functions; any thread.
#pragma once

#include "kernels/kernel.h"
#include "kernels/math/normalization.h"

namespace onnx_train {

constexpr float kEpsilon = 1e-5f;  // ONNX's default for all normalizations

// Images [batch, channels, rest].
struct Channels {
  int64_t batch, channels, rest = 1;
  explicit Channels(const Shape& shape) : batch(shape[0]), channels(shape[1]) {
    for (size_t i = 2; i < shape.size(); ++i) rest *= shape[i];
  }
  Channels(int64_t images, int64_t num_channels, int64_t per_image)
      : batch(images), channels(num_channels), rest(per_image) {}
  int64_t stride() const { return channels * rest; }
  int64_t per_channel() const { return batch * rest; }
  int64_t size() const { return batch * stride(); }
};

// Whether x, input 0, and the inputs from `images` on have one shape and element type `stored`, and all inputs in
// between have one element of type `computed` per channel.
bool has_channel_values(const NodeSpec& spec, int images, DType stored, DType computed);

// The groups of GroupNormalization: `per_group` channels of an image, stored one after the other. InstanceNormalization
// has one channel per group.
struct Groups : Channels {
  int64_t per_group;
  explicit Groups(const NodeSpec& spec);
  int64_t count() const { return per_group > 0 ? batch * (channels / per_group) : 0; }
  int64_t group_size() const { return per_group * rest; }
  int64_t first_channel(int64_t group) const { return group * per_group % channels; }
};

// Whether the shapes of a GroupNormalization, InstanceNormalization or GroupNormalizationGrad fit.
bool has_groups(const NodeSpec& spec);

// LRN sums the squares of `before` channels before and `after` channels after each channel.
struct Neighbours {
  int64_t size, before, after;
  explicit Neighbours(const Node& node)
      : size(node.attr("size", 1)), before((size - 1) / 2), after(size - 1 - before) {}
};
template <typename T>
math::LocalResponse<T> local_response(const Node& node) {
  return {static_cast<T>(node.attr("alpha", 1e-4f)) / static_cast<T>(Neighbours(node).size),
          static_cast<T>(node.attr("beta", 0.75f)), static_cast<T>(node.attr("bias", 1.0f))};
}

}  // namespace onnx_train
