#include "kernels/lowering/fusion/linear_loss_pattern.h"

#include <algorithm>
#include <cmath>

#include "kernels/geometry/linear_loss.h"
#include "kernels/geometry/reductions.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/equal_tensors.h"
#include "onnx_passes/ir/rows.h"
#include "onnx_passes/operators/random.h"

namespace onnx_train {
namespace {

// The logits of fewer classes take no more memory than what else a network computes of a position.
constexpr int64_t kLeastClasses = 1024;

int64_t columns_of(const Value& value) { return value.type().shape().back(); }

// Whether the node is a view of rows that keeps them.
bool keeps_columns(const Node& node) {
  const Value &from = *node.input(0), &to = *node.output();
  return is_view(node) && from.type().is_static() && to.type().is_static() && from.rank() > 0 && to.rank() > 0 &&
         columns_of(from) == columns_of(to);
}

// The number by which the node multiplies its input i; nothing for another node.
std::optional<double> factor_of(const Node& node, int i) {
  const bool divides = node.is("Div") && i == 0;
  if ((!divides && !node.is("Mul")) || !has_type_of(*node.input(i), *node.output())) return {};
  const Tensor number = constant_of(node.input(1 - i));
  if (number.size() != 1 || !is_float(number.dtype())) return {};
  return divides ? 1 / number.at(0) : number.at(0);
}

bool about(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

// The value that holds the numbers of `value`, maybe in 16 bits or another shape.
const Value* source_of(const Value* value) {
  while (value->producer() && is_other_form(*value->producer())) value = value->producer()->input(0);
  return value;
}

bool are_equal_constants(const Value* a, const Value* b) {
  if (!a->is_initializer() || !b->is_initializer()) return false;
  const Tensor x = constant_of(a);
  return !x.empty() && are_same(x, constant_of(b));
}

bool are_equal_operations(const Node& x, const Node& y) {
  const auto& ours = x.shell().attribute();
  const auto& theirs = y.shell().attribute();
  return x.op() == y.op() && x.domain() == y.domain() && x.overload() == y.overload() && x.num_outputs() == 1 &&
         y.num_outputs() == 1 && x.subgraphs().empty() && y.subgraphs().empty() && !is_random(x) &&
         x.inputs().size() == y.inputs().size() && std::ranges::equal(ours, theirs, [](const auto& a, const auto& b) {
           return a.SerializeAsString() == b.SerializeAsString();
         });
}

// Whether both values hold the same numbers in the same order: they are one, or equal operations make them of such
// values, as those that dequantize a weight for each of its readers. Of at most `depth` operations.
bool hold_the_same(const Value* a, const Value* b, int depth = 8) {
  a = source_of(a), b = source_of(b);
  if (a == b) return true;
  const Node *x = a->producer(), *y = b->producer();
  if (!x && !y) return are_equal_constants(a, b);
  if (!x || !y || depth == 0 || a->dtype() != b->dtype()) return false;
  if (is_rounding(*x) && is_rounding(*y)) return hold_the_same(x->input(0), y->input(0), depth - 1);
  return are_equal_operations(*x, *y) &&
         std::ranges::equal(x->inputs(), y->inputs(), [&](const Value* of_x, const Value* of_y) {
           return of_x && of_y ? hold_the_same(of_x, of_y, depth - 1) : of_x == of_y;
         });
}

class Search {
 public:
  explicit Search(Node* loss) : graph_(loss->graph()) { found_.loss = loss; }

  std::optional<LinearLoss> run() {
    if (!is_large() || !find_product() || !only_losses_read(found_.product_output(), 0, false)) return {};
    if (found_.gradient && (!is_of_loss() || !only_products_read(found_.gradient->output(), 1, false, false)))
      return {};
    return find_place() ? std::optional<LinearLoss>(found_) : std::nullopt;
  }

 private:
  struct Found : LinearLoss {
    Node* product = nullptr;
    Value* product_output() const { return product->output(); }
  };

  const Value* labels() const { return found_.loss->input(1); }

  bool is_large() const {
    const Node& loss = *found_.loss;
    if (!loss.is("SoftmaxCrossEntropy", kDomain) || loss.has_attr("classes")) return false;
    const Value &logits = *loss.input(0), &label = *loss.input(1);
    if (!logits.type().is_static() || !label.type().is_static() || label.rank() < 1) return false;
    return normalize_axis(loss.attr("axis", 1), logits.rank()) == logits.rank() - 1 &&
           columns_of(logits) >= kLeastClasses && num_elements(label.type().shape()) >= kLeastChunkedPositions;
  }

  // ---- From the loss back to the product

  bool find_product() {
    Value* value = found_.loss->input(0);
    for (;;) {
      Node* const node = value->producer();
      if (!node || &node->graph() != &graph_) return false;
      if (is_16_bit_float(value->dtype())) {
        if (found_.rounding != DType::kUndefined && found_.rounding != value->dtype()) return false;
        found_.rounding = value->dtype();
      }
      int operand = 0;
      if (const auto factor = factor_in(*node, &operand)) {
        found_.scale *= *factor;
        after_.insert(after_.begin(), node);
      } else if (node->is("Tanh") && !tanh_) {
        tanh_ = node;
        found_.cap = std::exchange(found_.scale, 1);
        after_.insert(after_.begin(), node);
      } else if (add_bias(*node)) {
        after_.insert(after_.begin(), node);
        value = node->input(bias_at_ == 0 ? 1 : 0);
        return value->producer() && is_product(value->producer());
      } else if (!keeps_columns(*node) && !is_widening(*node) && !is_rounding(*node)) {
        return is_product(node);
      }
      value = node->input(operand);
    }
  }

  // The number by which the node multiplies one of its inputs, number `operand`.
  static std::optional<double> factor_in(const Node& node, int* operand) {
    for (int i = 0; i < 2; ++i) {
      const auto factor = factor_of(node, i);
      if (!factor) continue;
      *operand = i;
      return factor;
    }
    return {};
  }

  bool add_bias(const Node& node) {
    if (!node.is("Add")) return false;
    for (const int i : {0, 1}) {
      const Value &bias = *node.input(i), &y = *node.input(1 - i);
      if (!has_type_of(y, *node.output()) || !is_row_of(bias, y)) continue;
      found_.bias = node.input(i);
      bias_at_ = i;
      return true;
    }
    return false;
  }

  bool is_product(Node* node) {
    const bool is_one = node->is("MatMul") || node->is("Gemm") || node->domain() == kDomain;
    const std::optional<int64_t> axis =
        is_one && has_only(*node, {EpilogueStep::kBias}) ? column_axis(*node) : std::nullopt;
    if (!axis) return false;
    found_.product = node;
    found_.h = node->input(0), found_.w = node->input(1);
    if (!found_.h->type().is_static() || !found_.w->type().is_static()) return false;
    found_.class_axis = *axis;
    found_.classes = found_.w->type().shape()[static_cast<size_t>(*axis)];
    if (Value* const addend = addend_of(*node)) {
      if (found_.bias || addend->type().shape() != Shape{found_.classes}) return false;
      found_.bias = addend;
    }
    return columns_of(*found_.h) > 0 && (!tanh_ || found_.cap != 0);
  }

  // ---- Readers of logits

  template <typename F>
  bool all_readers(const Value& value, const F& fits) const {
    const auto& uses = value.uses();
    return !graph_.is_output(&value) && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
      return &use.node->graph() == &graph_ && fits(use);
    });
  }

  // Whether the value is in the stored form that the losses read.
  bool is_stored(const Value& value, bool is_rounded) const {
    return found_.rounding == DType::kUndefined || is_rounded || is_16_bit_float(value.dtype());
  }

  // `passed` of the nodes after the product have made the value.
  bool only_losses_read(const Value* value, size_t passed, bool is_rounded) {
    return all_readers(*value, [&](const Use& use) {
      Node* const node = use.node;
      if (passed < after_.size() && node == after_[passed]) return only_losses_read(node->output(), passed + 1, false);
      if (is_rounding(*node) || is_widening(*node)) {
        const DType narrow = is_rounding(*node) ? node->output()->dtype() : value->dtype();
        return narrow == found_.rounding && only_losses_read(node->output(), passed, true);
      }
      if (keeps_columns(*node)) return only_losses_read(node->output(), passed, is_rounded);
      if (tanh_ && node->is("TanhGrad", kDomain) && use.index == 1 && passed > 0 && after_[passed - 1] == tanh_) {
        tanh_gradients_.push_back(node);
        return true;
      }
      return passed == after_.size() && is_stored(*value, is_rounded) && reads_logits(use);
    });
  }

  bool reads_logits(const Use& use) {
    Node* const node = use.node;
    if (node == found_.loss) return use.index == 0;
    if (node->is("SoftmaxCrossEntropyGrad", kDomain) && use.index == 1) {
      const bool is_first = !found_.gradient;
      found_.gradient = node;
      return is_first;
    }
    if (node->is("LabelScores", kDomain)) return take_scores(node, use.index);
    if (node->op() != "ArgMax" || use.index != 0 || node->attr("keepdims", 1) != 0) return false;
    return normalize_axis(node->attr("axis", 0), node->input(0)->rank()) == node->input(0)->rank() - 1 &&
           node->attr("select_last_index", 0) == 0 &&
           all_readers(*node->output(), [&](const Use& best) { return is_hit(best); });
  }

  // Ignored labels have the scores 0 in both nodes.
  bool take_scores(Node* node, int index) {
    const int64_t rank = node->input(0)->rank();
    found_.scores.push_back(node);
    return index == 0 && normalize_axis(node->attr("axis", 1), rank) == rank - 1 && is_label(node->input(1)) &&
           node->attr("ignore_index", -100) == found_.loss->attr("ignore_index", -100);
  }

  bool is_label(const Value* value) const {
    value = source_of(value);
    const Node* const node = value->producer();
    return value == source_of(labels()) ||
           (node && node->is("Cast") && is_integer(value->dtype()) && source_of(node->input(0)) == source_of(labels()));
  }

  // Whether the use is an Equal of the largest logit and the label, which counts only where the label is not ignored.
  bool is_hit(const Use& best) {
    Node* const equal = best.node;
    if (!equal->is("Equal") || !is_label(equal->input(1 - best.index))) return false;
    const bool fits = all_readers(*equal->output(), [&](const Use& hit) {
      return hit.node->is("And") && counts(hit.node->input(1 - hit.index));
    });
    if (fits) found_.hits.push_back(equal);
    return fits;
  }

  // Whether the value tells which labels are not ignored.
  bool counts(const Value* value) const {
    const Node* const negation = value->producer();
    const Node* const equal = negation && negation->is("Not") ? negation->input(0)->producer() : nullptr;
    if (!equal || !equal->is("Equal")) return false;
    for (const int i : {0, 1}) {
      const Tensor number = constant_of(equal->input(i));
      if (number.size() == 1 && is_label(equal->input(1 - i)))
        return number.at(0) == static_cast<double>(found_.loss->attr("ignore_index", -100));
    }
    return false;
  }

  // ---- Readers of gradients

  // Whether the gradient is that of the loss.
  bool is_of_loss() const {
    const Node &loss = *found_.loss, &gradient = *found_.gradient;
    const Value* const log_sum = loss.output(1);
    const bool same_values = gradient.input(2) == loss.input(1) && gradient.input(4) == loss.input(2) && log_sum &&
                             gradient.input(3) == log_sum && log_sum->uses().size() == 1 && !graph_.is_output(log_sum);
    return same_values && gradient.attr("ignore_index", -100) == loss.attr("ignore_index", -100) &&
           gradient.attr_tensor("label_smoothing").at(0) == loss.attr_tensor("label_smoothing").at(0) &&
           gradient.attr("reduction", "mean") == std::string(loss.attr("reduction", "mean")) &&
           !gradient.has_attr("classes");
  }

  // `factor` has multiplied the gradient since the last function of the logits.
  bool only_products_read(const Value* value, double factor, bool passed_tanh, bool is_rounded) {
    return all_readers(*value, [&](const Use& use) {
      const Node& node = *use.node;
      if (keeps_columns(node)) return only_products_read(node.output(), factor, passed_tanh, is_rounded);
      if (is_rounding(node) || is_widening(node)) {
        const DType narrow = is_rounding(node) ? node.output()->dtype() : value->dtype();
        return narrow == found_.rounding && only_products_read(node.output(), factor, passed_tanh, true);
      }
      if (const auto more = factor_of(node, use.index))
        return only_products_read(node.output(), factor * *more, passed_tanh, false);
      const auto& slopes = tanh_gradients_;
      if (use.index == 0 && !passed_tanh && std::find(slopes.begin(), slopes.end(), use.node) != slopes.end())
        return about(factor, found_.cap) && only_products_read(node.output(), 1, true, false);
      return passed_tanh == (tanh_ != nullptr) && about(factor, found_.scale) && is_stored(*value, is_rounded) &&
             (is_dh(use) || is_dw(use) || is_dbias(use));
    });
  }

  bool take(Value** place, Value* value) const {
    if (*place) return false;
    *place = value;
    return true;
  }

  bool is_dh(const Use& use) {
    const Node& node = *use.node;
    return use.index == 0 && multiplies_two(node, {}) && node.input(1) != node.input(0) &&
           column_axis(node) == 1 - found_.class_axis && hold_the_same(node.input(1), found_.w) &&
           node.input(1)->type().shape() == found_.w->type().shape() && take(&found_.dh, use.node->output());
  }

  bool is_dw(const Use& use) {
    const Node& node = *use.node;
    if (!is_gradient_of_weight(node) || node.attr("perm_y", identity(2)) != identity(2)) return false;
    // dlogitsᵀ h, or hᵀ dlogits, as w is stored.
    const Value* const h = node.input(1 - use.index);
    return use.index == found_.class_axis && hold_the_same(h, found_.h) && columns_of(*h) == columns_of(*found_.h) &&
           node.output()->dtype() == found_.loss->output()->dtype() && take(&found_.dw, use.node->output()) &&
           take_sums(use);
  }

  // The sums of dlogits, if the gradient of the weight has any, are that of the bias.
  bool take_sums(const Use& use) {
    const std::optional<int> operand = summed_operand(*use.node);
    if (!operand) return true;
    Value* const sums = use.node->output(output_at(*use.node, "sums"));
    return !sums || (found_.bias && *operand == use.index && take(&found_.dbias, sums));
  }

  bool is_dbias(const Use& use) {
    const Node& node = *use.node;
    return found_.bias && use.index == 0 && sums_columns(node) && node.output()->type().is_static() &&
           num_elements(node.output()->type().shape()) == found_.classes && take(&found_.dbias, use.node->output());
  }

  // ---- Where the call goes

  // The call stands where the first of its results is, of those that do not wait for the loss.
  bool find_place() {
    const Positions positions(graph_);
    found_.place = found_.loss;
    for (const auto* nodes : {&found_.hits, &found_.scores}) {
      for (Node* node : *nodes) {
        if (positions.of(node) < positions.of(found_.place)) found_.place = node;
      }
    }
    for (const Value* value : {found_.h, found_.w, found_.bias, found_.loss->input(1), found_.loss->input(2)}) {
      if (value && !positions.is_before(value, found_.place)) return false;
    }
    if (!found_.gradient || !needs(found_.dloss(), positions)) return !found_.gradient;
    std::sort(found_.hoisted.begin(), found_.hoisted.end(),
              [&](const Node* a, const Node* b) { return positions.of(a) < positions.of(b); });
    return true;
  }

  // Collects the nodes that make the value and stand after the place. They are few: factors of the loss.
  bool needs(const Value* value, const Positions& positions) {
    constexpr size_t kMost = 32;
    Node* const node = value->producer();
    if (positions.is_before(value, found_.place)) return true;
    if (node == found_.loss || &node->graph() != &graph_ || found_.hoisted.size() == kMost) return false;
    for (const auto* nodes : {&found_.hits, &found_.scores}) {
      if (std::find(nodes->begin(), nodes->end(), node) != nodes->end()) return false;
    }
    if (std::find(found_.hoisted.begin(), found_.hoisted.end(), node) != found_.hoisted.end()) return true;
    found_.hoisted.push_back(node);
    const auto& inputs = node->inputs();
    return std::all_of(inputs.begin(), inputs.end(),
                       [&](const Value* input) { return !input || needs(input, positions); });
  }

  const Graph& graph_;
  Found found_;
  std::vector<Node*> after_;  // what computes the logits from the product, in order
  Node* tanh_ = nullptr;
  int bias_at_ = 0;
  std::vector<Node*> tanh_gradients_;
};

}  // namespace

std::optional<LinearLoss> find_linear_loss(Node* loss) {
  if (!loss->is("SoftmaxCrossEntropy", kDomain)) return {};
  return Search(loss).run();
}

}  // namespace onnx_train
