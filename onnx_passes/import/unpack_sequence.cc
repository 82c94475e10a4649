#include "onnx_passes/import/unpack_sequence.h"

#include <algorithm>
#include <optional>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// The sizes of the parts; empty if they are unknown.
std::vector<int64_t> part_sizes(const Node& split) {
  constexpr int64_t kMost = 1024;
  const Value* x = split.input(0);
  if (!x->has_rank()) return {};
  const Dim& along = (*x->type().dims)[static_cast<size_t>(normalize_axis(split.attr("axis", 0), x->rank()))];
  const Tensor sizes = split.input(1) ? constant_of(split.input(1)) : Tensor::scalar<int64_t>(1);
  if (sizes.empty()) return {};
  if (!sizes.shape().empty()) return sizes.to_ints();
  const int64_t size = sizes.to_ints()[0];
  if (!along.known() || size <= 0 || along.value() / size > kMost) return {};
  std::vector<int64_t> parts(static_cast<size_t>(along.value() / size), size);
  if (along.value() % size != 0) parts.push_back(along.value() % size);
  return parts;
}

std::vector<Value*> split_parts(Node* node) {
  const std::vector<int64_t> sizes = part_sizes(*node);
  if (sizes.empty()) return {};
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name() + "/part");
  const int64_t axis = node->attr("axis", 0);
  const bool drops_axis = !node->input(1) && node->attr("keepdims", 1) == 0;
  std::vector<Value*> parts;
  for (const Var& part :
       b.ops("Split", static_cast<int>(sizes.size()), {b.var(node->input(0)), b.ints(sizes)}, {{"axis", axis}}))
    parts.push_back((drops_axis ? squeeze(part, {axis}) : part).value());
  return parts;
}

// A constant position among `count`, from the end if it is negative; none if it is unknown or outside.
std::optional<size_t> position(const Value* value, size_t count) {
  const Tensor known = value ? constant_of(value) : Tensor();
  if (known.size() != 1) return std::nullopt;
  const auto size = static_cast<int64_t>(count), given = static_cast<int64_t>(known.at(0));
  const int64_t at = given < 0 ? given + size : given;
  return at < 0 || at >= size ? std::nullopt : std::optional(static_cast<size_t>(at));
}

}  // namespace

const std::vector<Value*>* Sequences::members(const Value* sequence) const {
  const auto found = members_.find(sequence);
  return found == members_.end() ? nullptr : &found->second;
}

bool Sequences::note(Node* node) {
  const std::vector<Value*>* before = members(node->input(0));
  if (node->is("SequenceConstruct")) {
    members_[node->output()] = node->inputs();
  } else if (node->is("SequenceEmpty")) {
    members_[node->output()] = {};
  } else if (node->is("SplitToSequence")) {
    if (std::vector<Value*> parts = split_parts(node); !parts.empty()) members_[node->output()] = std::move(parts);
  } else if (node->is("Identity") && before) {
    members_[node->output()] = *before;
  } else if (node->is("SequenceInsert") && before) {
    std::vector<Value*> all = *before;
    const auto at = node->input(2) ? position(node->input(2), all.size() + 1) : all.size();
    if (!at) return true;
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(*at), node->input(1));
    members_[node->output()] = std::move(all);
  } else if (node->is("SequenceErase") && before && !before->empty()) {
    std::vector<Value*> all = *before;
    const auto at = node->input(1) ? position(node->input(1), all.size()) : all.size() - 1;
    if (!at) return true;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(*at));
    members_[node->output()] = std::move(all);
  } else if (node->is("SequenceMap") && before) {
    map_members(node, before->size());
  } else {
    return false;
  }
  return true;
}

// Writes the body once for each member. Other inputs that are sequences have as many members, or are read as tensors.
void Sequences::map_members(Node* node, size_t count) {
  Graph& graph = node->graph();
  const Graph& body = *node->subgraph("body");
  std::vector<std::vector<Value*>> results(static_cast<size_t>(node->num_outputs()));
  for (size_t k = 0; k < count; ++k) {
    Node* const last = node->previous();
    GraphCopy copy(&graph, node);
    for (int i = 0; i < node->num_inputs(); ++i) {
      const std::vector<Value*>* all = members(node->input(i));
      if (all && all->size() != count)
        fail("[Import] ", node->label(), ": its sequences have ", count, " and ", all->size(), " members");
      copy.map(body.inputs().at(static_cast<size_t>(i)), all ? (*all)[k] : node->input(i));
    }
    copy.contents(body);
    for (Node* n = last ? last->next() : graph.first(); n != node; n = n->next()) {
      forget_shapes(n);
      infer_types(n);
    }
    for (size_t i = 0; i < results.size(); ++i) results[i].push_back(copy.of(body.outputs().at(i)));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (node->output(static_cast<int>(i))) members_[node->output(static_cast<int>(i))] = std::move(results[i]);
  }
}

bool Sequences::unpack(Node* node) {
  if (!node->output() || note(node)) return false;
  const std::vector<Value*>* all = members(node->input(0));
  if (!all) return false;
  Graph& graph = node->graph();
  Builder b(&graph, node);
  const std::string name = node->output()->name();
  b.set_name(name + "/" + node->op());
  Value* made = nullptr;
  if (node->is("SequenceAt")) {
    const auto at = position(node->input(1), all->size());
    if (!at) return false;
    made = (*all)[*at];
  } else if (node->is("SequenceLength")) {
    made = b.op("Identity", {b.scalar(DType::kInt64, static_cast<double>(all->size()))}).value();
  } else if (node->is("ConcatFromSequence") && !all->empty()) {
    const int64_t axis = node->attr("axis", 0);
    std::vector<Var> parts;
    for (Value* part : *all)
      parts.push_back(node->attr("new_axis", 0) != 0 ? unsqueeze(b.var(part), {axis}) : b.var(part));
    made = concat(parts, axis).value();
  } else {
    return false;
  }
  graph.replace(node->output(), made);
  graph.remove(node);
  return true;
}

}  // namespace onnx_train
