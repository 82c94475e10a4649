#include "runtime/onnxruntime/recovered_loss.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

// The node that computes the value, if it is this operator.
const Node* made_by(const Value* value, const char* op) {
  return value && value->producer() && value->output_index() == 0 && value->producer()->is(op) ? value->producer()
                                                                                               : nullptr;
}

// Whether the value is a float of one element, and that one.
bool is_number(const Value* value, double number) {
  if (!value || !value->is_initializer() || !is_float(value->dtype())) return false;
  const Tensor contents = contents_of(*value);
  return contents.size() == 1 && contents.at(0) == number;
}

// Whether both are declared and of the same sizes, or one of them is not declared.
bool may_be_equal(const Value& a, const Value& b) {
  if (!a.has_rank() || !b.has_rank()) return true;
  if (a.rank() != b.rank()) return false;
  for (size_t i = 0; i < a.type().dims->size(); ++i) {
    const Dim &x = (*a.type().dims)[i], &y = (*b.type().dims)[i];
    if (x.known() && y.known() && x.value() != y.value()) return false;
  }
  return true;
}

// "[1, 2, 0.5]" of a constant vector; nothing for another value.
std::optional<std::string> list_of(const Value* value) {
  if (!value || !value->is_initializer() || !is_float(value->dtype()) || !value->has_rank() || value->rank() > 1)
    return {};
  const Tensor contents = contents_of(*value);
  std::string text;
  for (int64_t i = 0; i < contents.size(); ++i) text += concat(i ? ", " : "", number_text(contents.at(i)));
  return "[" + text + "]";
}

RecoveredLoss call_of(const std::string& loss, Value* prediction, const Value& target, const std::string& options) {
  const std::string names = concat(quoted_if_needed(prediction->name()), ", ", quoted_if_needed(target.name()));
  return {concat(loss, "(", names, options, ")"), prediction};
}

std::optional<RecoveredLoss> cross_entropy(const Value& loss) {
  const Node* node = made_by(&loss, "SoftmaxCrossEntropyLoss");
  if (!node || !node->input(0) || !node->input(1)) return {};
  std::string options;
  const Value& scores = *node->input(0);
  if (!scores.has_rank() || scores.rank() != 2) options += ", axis=1";
  if (node->has_attr("ignore_index")) options += concat(", ignore_index=", node->attr("ignore_index", 0));
  if (node->input(2)) {
    const auto weights = list_of(node->input(2));
    if (!weights) return {};
    options += ", weight=" + *weights;
  }
  const std::string reduction = node->attr("reduction", "mean");
  if (reduction != "mean" && reduction != "sum") return {};
  if (reduction == "sum") options += ", reduction=sum";
  return call_of("cross_entropy", node->input(0), *node->input(1), options);
}

// -(t log σ(x) + (1 - t) log(1 - σ(x))), the first term times a weight if there is one
std::optional<RecoveredLoss> bce_with_logits(const Value* value, const std::string& reduction) {
  const Node* minus = made_by(value, "Neg");
  const Node* sum = minus ? made_by(minus->input(0), "Add") : nullptr;
  const Node* first = sum ? made_by(sum->input(0), "Mul") : nullptr;
  const Node* second = sum ? made_by(sum->input(1), "Mul") : nullptr;
  if (!first || !second) return {};
  std::string options = reduction;
  if (const Node* inner = made_by(first->input(0), "Mul")) {
    const auto weights = list_of(first->input(1));
    if (!weights) return {};
    options = concat(", pos_weight=", *weights, reduction);
    first = inner;
  }
  const Node *log = made_by(first->input(0), "Log"), *other_log = made_by(second->input(0), "Log");
  const Node* sigmoid = log ? made_by(log->input(0), "Sigmoid") : nullptr;
  const Node* missing = other_log ? made_by(other_log->input(0), "Sub") : nullptr;
  const Node* other_target = made_by(second->input(1), "Sub");
  Value* target = first->input(1);
  if (!sigmoid || !missing || !other_target || !target) return {};
  const bool is_same = missing->input(1) == sigmoid->output() && other_target->input(1) == target &&
                       is_number(missing->input(0), 1) && is_number(other_target->input(0), 1);
  if (!is_same || !may_be_equal(*sigmoid->input(0), *target)) return {};
  return call_of("bce_with_logits", sigmoid->input(0), *target, options);
}

std::optional<RecoveredLoss> of_elements(const Value& loss) {
  const Node *mean = made_by(&loss, "ReduceMean"), *sum = made_by(&loss, "ReduceSum");
  const Node* reduction = mean ? mean : sum;
  if (!reduction || reduction->input(1) || reduction->has_attr("axes")) return {};
  if (reduction->attr("noop_with_empty_axes", 0) != 0) return {};
  const std::string option = sum ? ", reduction=sum" : "";
  const Value* value = reduction->input(0);
  const Node *power = made_by(value, "Pow"), *magnitude = made_by(value, "Abs");
  if (!power && !magnitude) return bce_with_logits(value, option);
  if (power && !is_number(power->input(1), 2)) return {};
  const Node* difference = made_by((power ? power : magnitude)->input(0), "Sub");
  if (!difference || !difference->input(0) || !difference->input(1)) return {};
  if (!may_be_equal(*difference->input(0), *difference->input(1))) return {};
  return call_of(power ? "mse" : "l1", difference->input(0), *difference->input(1), option);
}

}  // namespace

std::optional<RecoveredLoss> recover_loss(const Value& loss) {
  if (auto recovered = cross_entropy(loss)) return recovered;
  return of_elements(loss);
}

}  // namespace onnx_train
