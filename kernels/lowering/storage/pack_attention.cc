// Makes attention read queries, keys and values as thirds of the one tensor that a product writes, and its backward
// pass write the gradients as thirds of the tensor that the product's gradient reads, so that neither a Split nor a
// Concat copies. A result [batch, tokens, 3 heads width] is read as [batch, tokens, 3 heads, width]: the first third of
// the heads are queries, then keys, then values.
#include <algorithm>
#include <array>

#include "kernels/functions/functions.h"
#include "kernels/lowering/attention/block_attention.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr size_t kParts = 3;
using Parts = std::array<Value*, kParts>;  // q, k and v, or their gradients

int64_t elements_before(const Shape& shape, int64_t axis) {
  return num_elements(Shape(shape.begin(), shape.begin() + axis));
}

// Returns the shape of the tensor whose thirds along `axis` have this shape.
Shape whole_of(Shape part, int64_t axis) {
  part[static_cast<size_t>(axis)] *= static_cast<int64_t>(kParts);
  return part;
}

// Whether the thirds of a tensor along `axis` are, in the shape `part`, its thirds along `heads`.
bool are_thirds(const Value& whole, int64_t axis, const Shape& part, int64_t heads) {
  const TensorType& type = whole.type();
  return type.is_static() && num_elements(type.shape()) == num_elements(whole_of(part, heads)) &&
         elements_before(type.shape(), normalize_axis(axis, whole.rank())) == elements_before(part, heads);
}

// Returns the axis in memory of the heads, the last of the batch axes, or -1.
int64_t axis_of_heads(const Node& node, const char* permutation, bool is_result) {
  const Shape axes = node.attr(permutation, Shape{});
  const int64_t heads = std::ssize(axes) - 3;
  if (heads < 0) return -1;
  if (!is_result) return axes[static_cast<size_t>(heads)];
  return std::find(axes.begin(), axes.end(), heads) - axes.begin();
}

bool agree(const Node& node, const std::array<const char*, kParts>& permutations) {
  const auto permutation = [&](size_t i) { return node.attr(permutations[i], Shape{}); };
  return permutation(0) == permutation(1) && permutation(0) == permutation(2);
}

bool have_one_type(const Parts& parts) {
  return parts[0] && parts[1] && parts[2] && has_type_of(*parts[0], *parts[1]) && has_type_of(*parts[0], *parts[2]);
}

// Returns the input of the Split of which the parts are the thirds, in 16 bits if `parts` are widened. Returns null if
// they are no thirds.
Value* whole_before(const Parts& parts, int64_t heads) {
  Node* split = nullptr;
  for (size_t i = 0; i < kParts; ++i) {
    Value* const narrow = widened_from(parts[i]);
    const Value* const piece = before_views(narrow ? narrow : parts[i]);
    if (!piece->producer() || (split && piece->producer() != split)) return nullptr;
    split = piece->producer();
    if (!split->is("Split") || split->num_outputs() != kParts || split->output(static_cast<int>(i)) != piece)
      return nullptr;
  }
  Value* const whole = split->input(0);
  return are_thirds(*whole, split->attr("axis", 0), parts[0]->type().shape(), heads) ? whole : nullptr;
}

// Returns the Concat of the thirds, perhaps rounded; null if they are no thirds of its result or have other readers.
Node* join_after(const Parts& parts, int64_t heads) {
  Node* concat = nullptr;
  for (size_t i = 0; i < kParts; ++i) {
    const Value* piece = parts[i];
    const Node* reader = only_reader(piece);
    while (reader && (is_view(*reader) || (reader->is("Cast") && piece->dtype() == parts[i]->dtype()))) {
      piece = reader->output();
      reader = only_reader(piece);
    }
    if (!reader || !reader->is("Concat") || (concat && reader != concat)) return nullptr;
    concat = piece->uses()[0].node;
    if (concat->num_inputs() != kParts || concat->input(static_cast<int>(i)) != piece) return nullptr;
  }
  return are_thirds(*concat->output(), concat->attr("axis", 0), parts[0]->type().shape(), heads) ? concat : nullptr;
}

class PackAttention {
 public:
  PackAttention(Node* node, const Device& device)
      : node_(node), graph_(node->graph()), device_(device), backward_(node->op() == "BlockAttentionGrad") {}

  bool run() {
    const int first = backward_ ? 1 : 0;
    const Parts operands = {node_->input(first), node_->input(first + 1), node_->input(first + 2)};
    if (!have_one_type(operands) || !agree(*node_, {"perm_q", "perm_k", "perm_v"})) return false;
    const int64_t heads = axis_of_heads(*node_, "perm_q", false);
    Value* const whole = heads < 0 ? nullptr : whole_before(operands, heads);
    if (!whole) return false;

    const Parts results = {node_->output(0), node_->output(1), node_->output(2)};
    Node* concat = nullptr;
    if (backward_) {
      if (!have_one_type(results) || !agree(*node_, {"perm_dq", "perm_dk", "perm_dv"})) return false;
      concat = join_after(results, axis_of_heads(*node_, "perm_dq", true));
      if (!concat) return false;
    }

    Builder b(&graph_, node_);
    b.set_name(node_->output()->name());
    Var packed = with_shape(b.var(whole), whole_of(operands[0]->type().shape(), heads));
    if (whole->dtype() != operands[0]->dtype()) packed = cast(packed, operands[0]->dtype());
    std::vector<Var> inputs;
    for (Value* input : node_->inputs()) inputs.push_back(input ? b.var(input) : Var());
    inputs[static_cast<size_t>(first)] = packed;
    inputs[static_cast<size_t>(first) + 1] = inputs[static_cast<size_t>(first) + 2] = Var();
    Attrs attrs = attention_attributes(*node_);
    attrs.emplace_back("packed", 1);
    const std::vector<Var> outputs = call_lowered(b, node_->op(), backward_ ? 1 : 3, inputs, attrs);
    if (!runs_on(device_, outputs[0].value()->producer())) return false;
    if (concat) {
      Value* const joined = concat->output();
      const bool rounds = joined->dtype() != outputs[0].dtype();
      const Var gradient = rounds ? cast(outputs[0], joined->dtype()) : outputs[0];
      graph_.replace(joined, with_shape(gradient, joined->type().shape()).value());
    } else {
      for (size_t i = 0; i < outputs.size(); ++i)
        graph_.replace(node_->output(static_cast<int>(i)), outputs[i].value());
    }
    return true;
  }

 private:
  Node* const node_;
  Graph& graph_;
  const Device& device_;
  const bool backward_;
};

}  // namespace

bool pack_attention(Model& model, const Device& device) {
  bool changed = false;
  for (Node* node : model.graph->nodes()) {
    const bool is_attention = node->is("BlockAttention", kDomain) || node->is("BlockAttentionGrad", kDomain);
    if (is_attention && !node->has_attr("packed")) changed = PackAttention(node, device).run() || changed;
  }
  remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
