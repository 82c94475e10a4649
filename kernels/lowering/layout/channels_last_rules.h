// Rules for operators on channels-last images, one per kind of operator, for channels_last.cc.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

// The use of images, tensors of [batch, channels, sizes..], by a node.
struct ChannelsLastRule {
  // Inputs (at least one) and outputs that are images. All of them are channels last, or none is.
  std::vector<int> inputs, outputs;
  // Whether the channels-first kernel traverses every image once more: to reorder it, or element by element.
  bool gains = false;
  // Writes the replacement of the node for its inputs. Returns one value per output. Images are channels last in both.
  std::function<std::vector<Var>(Builder& b, const std::vector<Var>& inputs)> write;
};

// Returns nothing if the node requires channels first, or if a shape that the rule needs is not concrete.
std::optional<ChannelsLastRule> channels_last_rule(const Node& node);

// Return the permutations from [batch, channels, sizes..] to [batch, sizes.., channels], and back.
std::vector<int64_t> to_channels_last(int64_t rank);
std::vector<int64_t> to_channels_first(int64_t rank);

// Permutes the axes of `value`: by a view if only axes of size 1 move, else by one Transpose, merged with the Transpose
// that produces `value`, if any.
Var permuted(Var value, const std::vector<int64_t>& permutation);
bool only_moves_ones(const Shape& shape, const std::vector<int64_t>& permutation);

}  // namespace onnx_train
