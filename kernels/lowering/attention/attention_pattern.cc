#include "kernels/lowering/attention/attention_pattern.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "kernels/lowering/layout/permutation.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

bool is_identity(const Permutation& permutation) {
  return permutation == identity(static_cast<int64_t>(permutation.size()));
}

bool same(const AttentionOperand& a, const AttentionOperand& b) {
  return a.value == b.value && a.permutation == b.permutation;
}

bool is_swap_of(const AttentionOperand& a, const AttentionOperand& b) {
  return a.value == b.value && a.permutation == swapped(b.permutation);
}

bool is_plain(const Value* value) {
  if (!value || value->dtype() != DType::kFloat || !value->type().is_static() || value->rank() < 2) return false;
  return num_elements(value->type().shape()) > 0;
}

// y = transpose(a b)
struct Product {
  Node* node = nullptr;
  AttentionOperand a, b, y;
};

std::optional<Product> product_of(Node* node) {
  const bool transposed = node && node->is("TransposedMatMul", kDomain);
  if (!transposed && !(node && node->is("MatMul"))) return {};
  for (const Value* value : {node->input(0), node->input(1), node->output()}) {
    if (!is_plain(value) || value->rank() != node->output()->rank()) return {};
  }
  const Permutation plain = identity(node->output()->rank());
  const auto permutation = [&](const char* name) { return transposed ? node->attr(name, plain) : plain; };
  return Product{node,
                 {node->input(0), permutation("perm_a")},
                 {node->input(1), permutation("perm_b")},
                 {node->output(), permutation("perm_y")}};
}

// Returns the value of a constant with one element.
std::optional<float> number(const Value* value) {
  if (!value || value->dtype() != DType::kFloat || !value->type().is_static()) return {};
  if (num_elements(value->type().shape()) != 1) return {};
  const Tensor constant = constant_of(value);
  return constant.empty() ? std::nullopt : std::optional(static_cast<float>(constant.at(0)));
}

bool is_zero(const Value* value) { return number(value) == 0.0f; }

// x times a constant scalar.
struct Scaled {
  Node* node = nullptr;
  Value* x = nullptr;
  float scale = 1;
};

std::optional<Scaled> scaled(Node* node) {
  if (!node || (!node->is("Mul") && !node->is("Div"))) return {};
  for (int i = 0; i < (node->is("Mul") ? 2 : 1); ++i) {
    const std::optional<float> factor = number(node->input(1 - i));
    if (!factor || node->input(i)->type() != node->output()->type()) continue;
    return Scaled{node, node->input(i), node->is("Mul") ? *factor : 1 / *factor};
  }
  return {};
}

class Matcher {
 public:
  Matcher(Node* softmax, bool through_roundings)
      : softmax_(softmax), p_(softmax->output()), through_roundings_(through_roundings) {}

  std::optional<Attention> run() {
    if (!is_plain(p_) || normalize_axis(softmax_->attr("axis", -1), p_->rank()) != p_->rank() - 1) return {};
    add(softmax_);
    if (!find_scores() || !find_guard() || !find_readers() || (found_.trains && !find_gradients())) return {};
    absorb_scale(&found_.q, &found_.dq);
    absorb_scale(&found_.k, &found_.dk);
    absorb_transposes();
    return rows_are_whole() && nobody_reads_between() ? std::optional(found_) : std::nullopt;
  }

 private:
  void add(Node* node) {
    if (members_.insert(node).second) found_.nodes.push_back(node);
  }

  // Returns the value that was rounded to 16 bits and widened to `value`, or `value` itself if it was not rounded.
  Value* exact(Value* value) const {
    Value* const before = through_roundings_ ? before_rounding(value) : nullptr;
    return before ? before : value;
  }

  // Adds the casts between exact(value) and `value`.
  void add_rounding(Value* value) {
    if (exact(value) == value) return;
    add(value->producer());
    add(value->producer()->input(0)->producer());
  }

  // Returns the readers of `value` and of its rounded copies.
  std::vector<Use> readers(const Value* value) const {
    std::vector<Use> result;
    for (const Use& use : value->uses()) {
      const std::vector<Use> of_copy = through_roundings_ ? readers_of_copies(use) : std::vector<Use>();
      if (of_copy.empty()) {
        result.push_back(use);
      } else {
        result.insert(result.end(), of_copy.begin(), of_copy.end());
      }
    }
    return result;
  }

  static std::vector<Use> readers_of_copies(const Use& narrowing) {
    const Node& cast = *narrowing.node;
    std::vector<Use> result;
    if (!is_rounding(cast)) return result;
    for (const Use& use : cast.output()->uses()) {
      if (widened_from(use.node->output()) != cast.output()) return {};
      const std::vector<Use>& uses = use.node->output()->uses();
      result.insert(result.end(), uses.begin(), uses.end());
    }
    return result;
  }

  // Returns the only reader of `value` or of its rounded copy, or null.
  Node* sole_reader(const Value* value) const {
    const std::vector<Use> uses = readers(value);
    return uses.size() == 1 && !value->graph().is_output(value) ? uses[0].node : nullptr;
  }

  // ---- Forward

  bool find_scores() {
    if (find_product(softmax_->input(0))) return true;
    Value* masked = exact(softmax_->input(0));
    Node* node = masked->producer();
    if (!node || masked->type() != p_->type()) return false;
    add_rounding(softmax_->input(0));
    if (node->is("Add")) {
      for (int i = 0; i < 2; ++i) {
        if (node->input(i)->type() == p_->type() && find_product(node->input(i))) return mask(node, node->input(1 - i));
      }
    }
    if (node->is("Where")) {
      for (int i = 1; i < 3; ++i) {
        const std::optional<float> fill = number(node->input(3 - i));
        if (!fill || node->input(i)->type() != p_->type() || !find_product(node->input(i))) continue;
        found_.fill = *fill;
        found_.keeps_true = i == 1;
        selects_ = true;
        return mask(node, node->input(0));
      }
    }
    return false;
  }

  bool mask(Node* node, Value* mask) {
    if (!mask->type().is_static()) return false;
    const Shape shape = mask->type().shape();
    if (shape.empty() || shape.back() != p_->type().shape().back()) return false;
    found_.mask = mask;
    add(node);
    return true;
  }

  // q kᵀ, possibly times a scalar
  bool find_product(Value* scores) {
    const std::optional<Scaled> times = scaled(exact(scores)->producer());
    Value* multiplied = times ? times->x : scores;
    const std::optional<Product> product = product_of(exact(multiplied)->producer());
    if (!product || !is_identity(product->y.permutation)) return false;
    add(product->node);
    add_rounding(scores);
    add_rounding(multiplied);
    if (times) add(times->node), found_.scale = times->scale;
    scaled_behind_ = times.has_value();
    found_.q = product->a;
    found_.k = {product->b.value, swapped(product->b.permutation)};
    return true;
  }

  // where(isnan(p), 0, p)
  bool find_guard() {
    nan_safe_p_ = p_;
    for (const Use& use : readers(p_)) {
      if (!use.node->is("IsNaN")) continue;
      add_rounding(use.node->input(0));
      undefined_ = use.node->output();
      add(use.node);
    }
    if (!undefined_) return true;
    for (const Use& use : readers(p_)) {
      if (!is_guard(use.node, p_)) continue;
      add_rounding(use.node->input(2));
      nan_safe_p_ = use.node->output();
      found_.nan_safe = true;
      add(use.node);
    }
    return found_.nan_safe;
  }

  bool is_guard(const Node* node, const Value* x) const {
    return node && node->is("Where") && node->input(0) == undefined_ && is_zero(node->input(1)) &&
           exact(node->input(2)) == x && node->output()->type() == p_->type();
  }

  // Finds the readers of the probabilities: the product with v and, in training, dv.
  bool find_readers() {
    for (const Use& use : readers(nan_safe_p_)) {
      if (members_.count(use.node)) continue;
      if (use.node->is("SoftmaxGrad", kDomain) && use.index == 1) continue;
      const std::optional<Product> product = product_of(use.node);
      if (!product || exact(product->a.value) != nan_safe_p_) return false;
      add_rounding(product->a.value);
      const bool forward = is_identity(product->a.permutation);
      if (!forward && !is_identity(swapped(product->a.permutation))) return false;
      Node*& place = forward ? found_.pv_product : found_.dv_product;
      if (place) return false;
      place = use.node;
      add(use.node);
      if (forward) {
        found_.v = product->b;
        found_.y = product->y;
      } else {
        found_.dy = product->b, found_.dv = product->y;
      }
    }
    found_.trains = found_.dv_product != nullptr;
    return found_.pv_product != nullptr;
  }

  // ---- Backward

  bool find_gradients() {
    for (const Value* p : {p_, nan_safe_p_}) {
      for (const Use& use : readers(p)) {
        if (use.node->is("SoftmaxGrad", kDomain) && use.index == 1) gradient_ = use.node;
      }
    }
    if (!gradient_ || normalize_axis(gradient_->attr("axis", -1), p_->rank()) != p_->rank() - 1) return false;
    add(gradient_);
    add_rounding(gradient_->input(1));
    return find_probability_gradient() && find_score_gradient();
  }

  // dP = dy vᵀ, 0 where p is NaN
  bool find_probability_gradient() {
    Value* dp = gradient_->input(0);
    add_rounding(dp);
    if (found_.nan_safe) {
      Node* guard = exact(dp)->producer();
      if (!guard || !is_guard(guard, exact(guard->input(2)))) return false;
      add(guard);
      dp = guard->input(2);
      add_rounding(dp);
    }
    const std::optional<Product> product = product_of(exact(dp)->producer());
    if (!product || !is_identity(product->y.permutation)) return false;
    if (!same(product->a, found_.dy) || !is_swap_of(product->b, found_.v)) return false;
    found_.dp_product = product->node;
    add(product->node);
    return true;
  }

  // Follows the chain from SoftmaxGrad through mask and scale to the two products.
  bool find_score_gradient() {
    Value* ds = gradient_->output();
    if (selects_) {
      Node* node = sole_reader(ds);
      const int kept = found_.keeps_true ? 1 : 2;
      if (!node || !node->is("Where") || node->input(0) != found_.mask || exact(node->input(kept)) != ds ||
          !is_zero(node->input(3 - kept)) || node->output()->type() != p_->type()) {
        return false;
      }
      add(node);
      add_rounding(node->input(kept));
      ds = node->output();
    }
    if (scaled_behind_) {
      const std::optional<Scaled> times = scaled(sole_reader(ds));
      if (!times || exact(times->x) != ds || times->scale != found_.scale) return false;
      add(times->node);
      add_rounding(times->x);
      ds = times->node->output();
    }
    for (const Use& use : readers(ds)) {
      const std::optional<Product> product = product_of(use.node);
      Value* read = use.node->input(use.index);
      if (!product || !(find_query_gradient(*product, read) || find_key_gradient(*product, read))) return false;
      add(use.node);
      add_rounding(read);
    }
    return found_.dq.value && found_.dk.value;
  }

  bool find_query_gradient(const Product& product, const Value* ds) {
    if (found_.dq.value || product.a.value != ds || !is_identity(product.a.permutation)) return false;
    if (!same(product.b, found_.k)) return false;
    found_.dq = product.y;
    return true;
  }

  // dSᵀ q, or its transpose qᵀ dS
  bool find_key_gradient(const Product& product, const Value* ds) {
    if (found_.dk.value) return false;
    if (product.a.value == ds && is_identity(swapped(product.a.permutation)) && same(product.b, found_.q)) {
      found_.dk = product.y;
      return true;
    }
    if (product.b.value != ds || !is_identity(product.b.permutation) || !is_swap_of(product.a, found_.q)) return false;
    found_.dk = product.y;
    const int64_t rank = product.node->output()->rank();
    for (int64_t& axis : found_.dk.permutation) axis = axis >= rank - 2 ? 2 * rank - 3 - axis : axis;
    return true;
  }

  // ---- The operands and results

  // Absorbs a scalar factor of q into `scale`, if dq is multiplied by the same scalar; likewise for k.
  void absorb_scale(AttentionOperand* operand, AttentionOperand* gradient) {
    Value* product = exact(operand->value);
    const std::optional<Scaled> times = scaled(product->producer());
    if (!times || product->graph().is_output(product)) return;
    for (const Use& use : readers(product)) {
      if (!members_.count(use.node)) return;
    }
    if (found_.trains) {
      const std::optional<Scaled> back = scaled(sole_reader(gradient->value));
      if (!back || exact(back->x) != gradient->value || back->scale != times->scale) return;
      add(back->node);
      add_rounding(back->x);
      gradient->value = back->node->output();
    }
    add_rounding(operand->value);
    add(times->node);
    operand->value = times->x;
    found_.scale *= times->scale;
  }

  void absorb_transposes() {
    if (!found_.trains) return;
    for (AttentionOperand* operand : {&found_.dq, &found_.dk, &found_.dv}) {
      Node* node = only_reader(operand->value);
      if (!node || !node->is("Transpose")) continue;
      Permutation permutation = node->attr("perm", Permutation());
      if (permutation.size() != operand->permutation.size()) continue;
      for (int64_t& axis : permutation) axis = operand->permutation[static_cast<size_t>(axis)];
      add(node);
      *operand = {node->output(), permutation};
    }
  }

  bool rows_are_whole() const {
    std::vector<const AttentionOperand*> operands = {&found_.q, &found_.k, &found_.v, &found_.y};
    if (found_.trains) operands.insert(operands.end(), {&found_.dy, &found_.dq, &found_.dk, &found_.dv});
    const int64_t last = p_->rank() - 1;
    const Shape scores = p_->type().shape();
    return std::all_of(operands.begin(), operands.end(), [&](const AttentionOperand* operand) {
      const Shape shape = operand->value->type().shape();
      if (shape.size() != scores.size() || operand->permutation.back() != last) return false;
      // The batch sizes are equal, so none is broadcast.
      const bool read = operand != &found_.y && operand != &found_.dq && operand != &found_.dk && operand != &found_.dv;
      for (size_t i = 0; i + 2 < scores.size(); ++i) {
        const auto axis = static_cast<size_t>(operand->permutation[i]);
        if (read && shape[axis] != scores[i]) return false;
      }
      return true;
    });
  }

  bool nobody_reads_between() const {
    for (const Value* read : {found_.q.value, found_.k.value, found_.v.value, found_.dy.value, found_.mask}) {
      if (read && members_.count(read->producer())) return false;
    }
    const std::unordered_set<const Value*> results = {found_.y.value, found_.dq.value, found_.dk.value,
                                                      found_.dv.value};
    return std::all_of(found_.nodes.begin(), found_.nodes.end(), [&](const Node* node) {
      return std::all_of(node->outputs().begin(), node->outputs().end(), [&](const Value* output) {
        if (!output || results.count(output)) return true;
        const auto& uses = output->uses();
        return !output->graph().is_output(output) &&
               std::all_of(uses.begin(), uses.end(), [&](const Use& use) { return members_.count(use.node) > 0; });
      });
    });
  }

  Node* const softmax_;
  Value* const p_;
  const bool through_roundings_;
  Value* nan_safe_p_ = nullptr;  // the probabilities, or 0 where they are NaN
  Value* undefined_ = nullptr;
  Node* gradient_ = nullptr;
  bool selects_ = false, scaled_behind_ = false;
  Attention found_;
  std::unordered_set<const Node*> members_;
};

}  // namespace

std::optional<Attention> find_attention(Node* softmax, bool through_roundings) {
  return softmax->is("Softmax") ? Matcher(softmax, through_roundings).run() : std::nullopt;
}

}  // namespace onnx_train
