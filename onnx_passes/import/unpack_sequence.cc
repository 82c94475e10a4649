#include "onnx_passes/import/unpack_sequence.h"

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"

namespace onnx_train {
namespace {

// The sizes of the parts; empty if they are unknown.
std::vector<int64_t> part_sizes(const Node& split) {
  const Value* x = split.input(0);
  if (!x->has_rank() || split.attr("keepdims", 1) == 0) return {};
  const Dim& along = (*x->type().dims)[static_cast<size_t>(normalize_axis(split.attr("axis", 0), x->rank()))];
  const Tensor sizes = split.input(1) ? constant_of(split.input(1)) : Tensor::scalar<int64_t>(1);
  if (sizes.empty()) return {};
  if (!sizes.shape().empty()) return sizes.to_ints();
  const int64_t size = sizes.to_ints()[0];
  if (!along.known() || size <= 0 || along.value() / size > 1024) return {};
  std::vector<int64_t> parts(static_cast<size_t>(along.value() / size), size);
  if (along.value() % size != 0) parts.push_back(along.value() % size);
  return parts;
}

}  // namespace

bool unpack_sequence(Node* node) {
  if (!node->is("SplitToSequence") || !node->output()) return false;
  const auto parts = part_sizes(*node);
  const auto count = static_cast<int64_t>(parts.size());
  const std::vector<Use> uses = node->output()->uses();
  for (const Use& use : uses) {
    const Tensor index = constant_of(use.node->input(1));
    const bool inside = use.node->is("SequenceAt") && index.size() == 1 && &use.node->graph() == &node->graph() &&
                        index.to_ints()[0] >= -count && index.to_ints()[0] < count;
    if (!inside || node->graph().is_output(use.node->output())) return false;
  }
  if (parts.empty() || node->graph().is_output(node->output())) return false;
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name() + "/part");
  const auto outputs = b.ops("Split", static_cast<int>(count), {b.var(node->input(0)), b.ints(parts)},
                             {{"axis", node->attr("axis", 0)}});
  for (const Use& use : uses) {
    const int64_t index = constant_of(use.node->input(1)).to_ints()[0];
    node->graph().replace(use.node->output(), outputs[static_cast<size_t>(index < 0 ? index + count : index)].value());
    node->graph().remove(use.node);
  }
  node->graph().remove(node);
  return true;
}

}  // namespace onnx_train
