// How each operator works on images that lie channels last: one rule per kind of operator, for channels_last.cc.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "onnx_passes/ir/builder.h"

namespace onnx_train::cpu {

// What a node can do with images, tensors of [batch, channels, sizes..].
struct ChannelsLastRule {
  // The inputs, at least one, and outputs that are images, and lie channels last together or not at all.
  std::vector<int> inputs, outputs;
  // With channels first, the kernel goes over every image once more: to reorder it, or element by element.
  bool gains = false;
  // Writes what takes the node's place. `inputs` are the node's, images channels last; so are the results. One for each
  // output of the node.
  std::function<std::vector<Var>(Builder& b, const std::vector<Var>& inputs)> write;
};

// Nothing when the node wants channels first. Every shape that the rule looks at is concrete.
std::optional<ChannelsLastRule> channels_last_rule(const Node& node);

// From [batch, channels, sizes..] to [batch, sizes.., channels], and back.
std::vector<int64_t> to_channels_last(int64_t rank);
std::vector<int64_t> to_channels_first(int64_t rank);

// The axes of `value` in another order: a view where only axes of one element move, and one Transpose with what
// `value` comes from otherwise.
Var permuted(Var value, const std::vector<int64_t>& permutation);
bool is_view(const Shape& shape, const std::vector<int64_t>& permutation);

}  // namespace onnx_train::cpu
