// The rules for operators on channels-last images, one per kind of operator, used by channels_last.cc.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "onnx_passes/ir/builder.h"

namespace onnx_train {

// What a node can do with images: tensors of [batch, channels, sizes..].
struct ChannelsLastRule {
  // Inputs (at least one) and outputs that are images. All of them are channels last, or none is.
  std::vector<int> inputs, outputs;
  // True if the channels-first kernel traverses every image once more: to reorder it, or element by element.
  bool gains = false;
  // Writes the replacement of the node. `inputs` are the node's inputs, images channels last. Returns one value per
  // output of the node, images channels last.
  std::function<std::vector<Var>(Builder& b, const std::vector<Var>& inputs)> write;
};

// Returns nothing if the node requires channels first. Every shape that the rule reads is concrete.
std::optional<ChannelsLastRule> channels_last_rule(const Node& node);

// The permutations from [batch, channels, sizes..] to [batch, sizes.., channels], and back.
std::vector<int64_t> to_channels_last(int64_t rank);
std::vector<int64_t> to_channels_first(int64_t rank);

// `value` with its axes permuted: a view if the permutation only moves axes of size 1, else one Transpose, merged with
// the Transpose that produces `value`, if any.
Var permuted(Var value, const std::vector<int64_t>& permutation);
bool only_moves_ones(const Shape& shape, const std::vector<int64_t>& permutation);

}  // namespace onnx_train
