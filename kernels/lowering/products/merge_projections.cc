// Merges the three products that compute queries, keys and values from one tensor, and the gradients of their operands:
// nine products of a layer become three, each three times as large, without sums of three. Mixed precision rounds the
// weights in each step; their copies are written beside each other. pack_attention lets attention read the thirds in
// place.
#include <algorithm>
#include <array>
#include <optional>

#include "kernels/functions/functions.h"
#include "kernels/lowering/attention/block_attention.h"
#include "kernels/lowering/layout/permutation.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr size_t kParts = 3;
template <typename T>
using Parts = std::array<T, kParts>;

// Adds the uses of the value in any form.
void collect_readers(const Value* value, std::vector<Use>* readers) {
  for (const Use& use : value->uses()) {
    if (is_other_form(*use.node) && use.index == 0) {
      collect_readers(use.node->output(), readers);
    } else {
      readers->push_back(use);
    }
  }
}

// Returns the Cast that rounds a value without a producer to 16 bits, or null.
Node* rounding_of_weight(const Value* value) {
  Node* node = value->producer();
  return node && is_rounding(*node) && !node->input(0)->producer() ? node : nullptr;
}

// A rounded product: y = x w + bias, or x wᵀ + bias, in 16 bits.
struct Projection {
  Node* product;
  int64_t axis;              // axis of the weight that becomes the columns of y; 0 for wᵀ
  Value *x, *weight, *bias;  // the bias, in 16 bits, or null
  Value* y;                  // rounded

  int64_t columns() const { return weight->type().shape()[static_cast<size_t>(axis)]; }
  bool fits(const Projection& other) const {
    return x == other.x && product->op() == other.product->op() && axis == other.axis &&
           has_type_of(*weight, *other.weight) && has_type_of(*y, *other.y) && !bias == !other.bias;
  }
};

std::optional<Projection> projection_before(Value* operand) {
  Value* const narrow = widened_from(operand);
  if (!narrow) return {};
  Value* const y = before_views(narrow);
  const Node* rounding = y->producer();
  if (!rounding || !rounding->is("Cast") || !is_read_once(rounding->input(0)) || !y->type().is_static()) return {};
  Node* product = rounding->input(0)->producer();
  const std::optional<int64_t> axis =
      product && has_only(*product, {EpilogueStep::kBias}) ? axis_of_columns(*product) : std::nullopt;
  if (!axis) return {};
  Projection p{product, *axis, product->input(0), product->input(1), nullptr, y};
  if (!rounding_of_weight(p.weight)) return {};
  if (const Value* const addend = addend_of(*product)) {
    p.bias = widened_from(addend);
    if (!p.bias || !rounding_of_weight(p.bias) || p.bias->rank() != 1) return {};
  }
  return p;
}

// The products that read the gradient of y: the gradients of the weight and, if needed, of x.
struct GradientProducts {
  Node *of_weight = nullptr, *of_x = nullptr;
};

class MergeProjections {
 public:
  explicit MergeProjections(Graph* graph) : graph_(*graph), positions_(*graph) {}

  bool run() {
    bool changed = false;
    for (Node* node : graph_.nodes()) {
      if (node->is("BlockAttention", kDomain) && !node->has_attr("packed")) changed = merge(node) || changed;
    }
    return changed;
  }

 private:
  bool merge(Node* attention) {
    Parts<Projection> all;
    for (size_t i = 0; i < kParts; ++i) {
      const std::optional<Projection> found = projection_before(attention->input(static_cast<int>(i)));
      if (!found || (i > 0 && !found->fits(all[0]))) return false;
      all[i] = *found;
      for (size_t j = 0; j < i; ++j) {
        if (all[j].product == found->product) return false;
      }
    }
    Node* backward = nullptr;
    for (size_t i = 0; i < kParts; ++i) {
      std::vector<Use> readers;
      collect_readers(all[i].y, &readers);
      for (const Use& use : readers) {
        const bool is_forward = use.node == attention && use.index == static_cast<int>(i);
        const bool is_backward = use.node->is("BlockAttentionGrad", kDomain) && use.index == static_cast<int>(i) + 1 &&
                                 (!backward || use.node == backward);
        if (!is_forward && !is_backward) return false;
        if (is_backward) backward = use.node;
      }
      if (graph_.is_output(all[i].y)) return false;
    }
    Parts<GradientProducts> gradients;
    if (backward && !find_gradients(*backward, all, &gradients)) return false;
    Value* const weight = merge_forward(all);
    if (backward) merge_backward(backward, all, gradients, weight);
    return true;
  }

  // ---- Forward

  // Concatenates the 16-bit copies of three weights along an axis, before `place`.
  Value* joined(const Parts<Value*>& copies, int64_t axis, Node* place) {
    for (Value* copy : copies) {
      Node* const cast = copy->producer();
      if (positions_.of(cast) > positions_.of(place)) graph_.move(cast, place);
    }
    Builder b(&graph_, place);
    b.set_name(copies[0]->name());
    return concat({b.var(copies[0]), b.var(copies[1]), b.var(copies[2])}, axis).value();
  }

  // Returns the merged weights.
  Value* merge_forward(const Parts<Projection>& all) {
    Node* const first = std::min_element(all.begin(), all.end(), [&](const Projection& p, const Projection& q) {
                          return positions_.of(p.product) < positions_.of(q.product);
                        })->product;
    Value* const weight = joined({all[0].weight, all[1].weight, all[2].weight}, all[0].axis, first);
    Builder b(&graph_, first);
    std::vector<Var> inputs = {b.var(all[0].x), b.var(weight)};
    if (all[0].bias)
      inputs.push_back(cast(b.var(joined({all[0].bias, all[1].bias, all[2].bias}, 0, first)), DType::kFloat));
    b.set_name(all[0].y->name());
    const Var y = cast(b.like(*first, inputs)[0], all[0].y->dtype());
    split(b, y, y.value()->rank() - 1, {all[0].y, all[1].y, all[2].y});
    return weight;
  }

  // Replaces `parts` by the thirds of a value along an axis.
  void split(Builder& b, Var whole, int64_t axis, const Parts<Value*>& parts) {
    const int64_t size = whole.type().shape()[static_cast<size_t>(axis)] / static_cast<int64_t>(kParts);
    const std::vector<Var> pieces = b.ops("Split", kParts, {whole, b.ints({size, size, size})}, {{"axis", axis}});
    for (size_t i = 0; i < kParts; ++i) graph_.replace(parts[i], pieces[i].value());
  }

  // ---- Backward

  static bool find_gradients(const Node& backward, const Parts<Projection>& all, Parts<GradientProducts>* found) {
    for (size_t i = 0; i < kParts; ++i) {
      const Value* gradient = backward.output(static_cast<int>(i));
      if (!gradient || !is_rounded(*gradient, all[i].y->dtype())) return false;
      std::vector<Use> readers;
      collect_rounded_readers(gradient, &readers);
      for (const Use& use : readers) {
        const bool of_weight = is_gradient_of_weight(use, all[i]);
        Node*& place = of_weight ? (*found)[i].of_weight : (*found)[i].of_x;
        if (place || !(of_weight || is_gradient_of_x(use, all[i]))) return false;
        place = use.node;
      }
      const GradientProducts &own = (*found)[i], &first = found->front();
      if (!own.of_weight || !own.of_x != !first.of_x) return false;
      if (own.of_weight->num_outputs() != first.of_weight->num_outputs()) return false;
      if (own.of_x && (!sum_of(*own.of_x) || sum_of(*own.of_x) != sum_of(*first.of_x))) return false;
    }
    return true;
  }

  // Whether the only reader of the value, or of a view of it, rounds it.
  static bool is_rounded(const Value& value, DType dtype) {
    const Node* reader = only_reader(&value);
    while (reader && is_view(*reader)) reader = only_reader(reader->output());
    return reader && reader->is("Cast") && reader->output()->dtype() == dtype;
  }
  static void collect_rounded_readers(const Value* value, std::vector<Use>* readers) {
    while (is_view(*only_reader(value))) value = only_reader(value)->output();
    collect_readers(only_reader(value)->output(), readers);
  }

  // dW = xᵀ dy, or its transpose dyᵀ x, perhaps with the sums of dy
  static bool is_gradient_of_weight(const Use& dy, const Projection& p) {
    const Node& node = *dy.node;
    return node.is("Gemm", kDomain) && onnx_train::is_gradient_of_weight(node) && dy.index == p.axis &&
           summed_operand(node).value_or(dy.index) == dy.index &&
           before_views(node.input(1 - dy.index)) == before_views(p.x) &&
           node.output()->type() == TensorType{DType::kFloat, p.weight->type().dims};
  }
  // dx = dy wᵀ, or dy w
  static bool is_gradient_of_x(const Use& dy, const Projection& p) {
    const Node& node = *dy.node;
    return node.is("Gemm", kDomain) && is_plain_product(node) && dy.index == 0 && node.attr("transA", 0) == 0 &&
           node.attr("transB", 0) == p.axis && node.input(1) == p.weight && node.output()->dtype() == DType::kFloat;
  }

  // Returns the Add that is the only reader of a value or of a view of it, or null.
  static Node* sum_with(const Value* value) {
    Node* reader = only_reader(value);
    while (reader && is_view(*reader)) {
      value = reader->output();
      reader = only_reader(value);
    }
    const bool adds = reader && reader->is("Add") && has_type_of(*reader->input(0), *reader->input(1));
    return adds && has_type_of(*value, *reader->output()) ? reader : nullptr;
  }
  // Returns the last Add of the sum that contains the product and whose partial sums have no other reader, or null.
  static const Node* sum_of(const Node& product) {
    const Node* last = nullptr;
    for (const Node* sum = sum_with(product.output()); sum; sum = sum_with(sum->output())) last = sum;
    return last;
  }

  void merge_backward(Node* backward, const Parts<Projection>& all, const Parts<GradientProducts>& gradients,
                      Value* weight) {
    Builder b(&graph_, backward->next());
    b.set_name(backward->output()->name());
    std::vector<Var> pieces;
    for (int i = 0; i < static_cast<int>(kParts); ++i) {
      const Var piece = cast(b.var(backward->output(i)), all[0].y->dtype());
      pieces.push_back(reshape(piece, {-1, all[0].columns()}));
    }
    const Var dy = concat(pieces, 1);

    Node* const first = earliest({gradients[0].of_weight, gradients[1].of_weight, gradients[2].of_weight});
    Builder at_weights(&graph_, first);
    at_weights.set_name(first->output()->name());
    std::vector<Var> operands = {at_weights.var(first->input(0)), at_weights.var(first->input(1))};
    operands[static_cast<size_t>(all[0].axis)] = at_weights.var(dy.value());
    const std::vector<Var> sums = at_weights.like(*first, operands, first->num_outputs());
    for (size_t k = 0; k < sums.size(); ++k) {
      Parts<Value*> parts;
      for (size_t i = 0; i < kParts; ++i) parts[i] = gradients[i].of_weight->output(static_cast<int>(k));
      split(at_weights, sums[k], k == 0 ? all[0].axis : 0, parts);
    }
    if (!gradients[0].of_x) return;

    // The merged product replaces one of the three, and the others leave the sum.
    Node* const kept = earliest({gradients[0].of_x, gradients[1].of_x, gradients[2].of_x});
    for (const GradientProducts& g : gradients) {
      if (g.of_x != kept) leave_sum(*g.of_x);
    }
    Builder at_x(&graph_, kept);
    at_x.set_name(kept->output()->name());
    graph_.replace(kept->output(), at_x.like(*kept, {at_x.var(dy.value()), at_x.var(weight)})[0].value());
  }

  void leave_sum(const Node& product) {
    Node* const sum = sum_with(product.output());
    graph_.replace(sum->output(), sum->input(before_views(sum->input(0)) == product.output() ? 1 : 0));
    graph_.remove(sum);
  }

  Node* earliest(const Parts<Node*>& nodes) const {
    return *std::min_element(nodes.begin(), nodes.end(),
                             [&](const Node* a, const Node* b) { return positions_.of(a) < positions_.of(b); });
  }

  Graph& graph_;
  const Positions positions_;
};

}  // namespace

bool merge_projections(Model& model) {
  remove_dead_nodes(model);
  const bool changed = MergeProjections(model.graph.get()).run();
  remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
