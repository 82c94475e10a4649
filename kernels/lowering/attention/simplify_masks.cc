// Makes the masks of block attention constant or finite, as its kernels need them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "kernels/functions/functions.h"
#include "kernels/lowering/attention/block_attention.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/builder.h"

namespace onnx_train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Memory limit for computing a mask: 256 MiB of floats.
constexpr int64_t kMostElements = int64_t{1} << 26;
// The replacement of -inf, the threshold for the highest score of a hidden row, and the lowest other number. Each hides
// a key beside a visible one, because adding a score does not change it in float32; times log2(e) it is finite.
constexpr float kHidden = -1e30f, kHighestHidden = -1e29f, kLowest = -1e28f;

bool is_backward(const Node& node) { return node.op() == "BlockAttentionGrad"; }
int mask_of(const Node& node) { return is_backward(node) ? 7 : 3; }

bool is_float(const Value* mask) { return mask->dtype() == DType::kFloat; }

// Returns the first of the planes [rows, columns], without the axes before them, if all are equal; else empty.
Tensor one_plane(const Tensor& mask) {
  const Shape& shape = mask.shape();
  if (shape.size() < 2 || mask.size() == 0) return mask;
  const Shape plane(shape.end() - 2, shape.end());
  const size_t bytes = static_cast<size_t>(num_elements(plane)) * size_of(mask.dtype());
  const char* const first = mask.data<char>();
  for (size_t at = bytes; at < mask.bytes(); at += bytes) {
    if (std::memcmp(first, first + at, bytes) != 0) return {};
  }
  Tensor result(mask.dtype(), plane);
  std::memcpy(result.data(), first, bytes);
  return result;
}

class SimplifyMasks {
 public:
  SimplifyMasks(Graph* graph, bool makes_finite) : graph_(*graph), makes_finite_(makes_finite) {}

  bool run() {
    bool changed = false;
    for (Node* node : graph_.nodes()) {
      const bool is_attention = node->is("BlockAttention", kDomain) || is_backward(*node);
      if (is_attention && node->input(mask_of(*node))) changed = simplify(node) || changed;
    }
    return changed;
  }

 private:
  // The replacement of a mask.
  struct Simpler {
    Value* value = nullptr;  // null: none
    bool is_finite = false;
  };

  bool simplify(Node* node) {
    Value* const mask = added_mask(node);
    const bool is_bound = std::isfinite(node->attr("hidden", -kInfinity));
    const bool bounds =
        makes_finite_ && node->attr("guarded", 0) != 0 && is_float(mask) && !is_bound && may_change_scores(*node);
    const auto key = std::make_tuple(mask->id(), bounds, node->attr("keeps_true", 0));
    auto found = simpler_.find(key);
    if (found == simpler_.end()) found = simpler_.emplace(key, simpler(node, mask, bounds)).first;
    const Simpler& to = found->second;
    if (to.value == node->input(mask_of(*node))) return false;
    replace(node, to);
    return true;
  }

  // Converts a bool mask that hides scores by -inf to an added mask of 0 or -inf, which libraries support. A finite
  // fill is kept: scores in rows that it hides entirely have no gradients.
  Value* added_mask(Node* node) {
    Value* const mask = node->input(mask_of(*node));
    const bool selects = mask->dtype() == DType::kBool && node->attr("fill", 0.0f) == -kInfinity;
    if (!makes_finite_ || !selects || node->output(0)->dtype() != DType::kFloat) return mask;
    const bool keeps_true = node->attr("keeps_true", 0) != 0;
    Value*& added = added_[{mask->id(), keeps_true}];
    if (!added) {
      Builder b(&graph_, node);
      b.set_name(mask->name() + "/added");
      const Var seen = b.scalar(DType::kFloat, 0), hidden = b.scalar(DType::kFloat, -kInfinity);
      added = where(b.var(mask), keeps_true ? seen : hidden, keeps_true ? hidden : seen).value();
    }
    return added;
  }

  // Whether the highest scores may become finite: they must not be outputs of the graph.
  bool may_change_scores(const Node& node) const {
    return is_backward(node) || !(graph_.is_output(node.output(1)) || graph_.is_output(node.output(2)));
  }

  Simpler simpler(Node* node, Value* mask, bool bounds) {
    Tensor known = computed_constant(mask, kMostElements);
    if (!known.empty()) known = one_plane(known);
    if (known.empty()) return {bounds ? bounded(node, mask) : mask, bounds};
    const double seen = is_float(mask) ? 0 : node->attr("keeps_true", 0) != 0 ? 1 : 0;
    if (known.holds_only(seen)) return {};
    if (bounds) {
      float* const elements = known.data<float>();
      std::transform(elements, elements + known.size(), elements, [](float x) {
        return x == -kInfinity ? kHidden : x < kLowest ? kLowest : x;
      });
    }
    if (!bounds && mask->is_initializer() && known.shape() == mask->type().shape()) return {mask, false};
    Value* const value = graph_.add_initializer(graph_.unique_name(mask->name() + "/plane"), known);
    return {value, bounds};
  }

  Value* bounded(Node* node, Value* mask) {
    Builder b(&graph_, node);
    b.set_name(mask->name());
    const Var x = b.var(mask), least = b.op("Max", {x, b.scalar(DType::kFloat, kLowest)});
    return where(equal(x, b.scalar(DType::kFloat, -kInfinity)), b.scalar(DType::kFloat, kHidden), least).value();
  }

  // Replaces the call by a variant with the simpler mask.
  void replace(Node* node, const Simpler& mask) {
    Builder b(&graph_, node);
    b.set_name(node->output()->name());
    std::vector<Var> inputs;
    for (Value* input : node->inputs()) inputs.push_back(input ? b.var(input) : Var());
    inputs.pop_back();
    if (mask.value) inputs.push_back(b.var(mask.value));
    Attrs attrs = attention_attributes(*node);
    if (mask.is_finite) set(&attrs, "hidden", kHighestHidden);
    const std::vector<Var> outputs = call_lowered(b, node->op(), node->num_outputs(), inputs, attrs);
    for (size_t i = 0; i < outputs.size(); ++i) graph_.replace(node->output(static_cast<int>(i)), outputs[i].value());
    graph_.remove(node);
  }
  static void set(Attrs* attrs, const std::string& name, float value) {
    for (Attr& attr : *attrs) {
      if (attr.name == name) attr.value = value;
    }
  }

  Graph& graph_;
  const bool makes_finite_;
  std::map<std::tuple<size_t, bool, int64_t>, Simpler> simpler_;
  std::map<std::pair<size_t, bool>, Value*> added_;
};

}  // namespace

bool simplify_masks(Model& model, bool makes_finite) {
  const bool changed = SimplifyMasks(model.graph.get(), makes_finite).run();
  remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
