#include "onnx_passes/loss/probabilities.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/loss/loss_table.h"
#include "onnx_passes/loss/loss_terms.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

constexpr int kMaxSteps = 16;  // between an output and what makes its probabilities

bool is_moved(const Node& node) {
  return node.is("Reshape") || node.is("Squeeze") || node.is("Unsqueeze") || node.is("Flatten") || node.is("Transpose");
}

// Whether `sum` is the sum of x along an axis, also with a bound below it, or repeated.
bool is_sum_of(const Value* sum, const Value* x) {
  for (int i = 0; i < kMaxSteps && sum && sum->producer(); ++i) {
    const Node& node = *sum->producer();
    if (node.is("ReduceSum") || node.is("ReduceL1")) return node.input(0) == x;
    if (!node.is("Clip") && !node.is("Max") && !node.is("Expand") && !node.is("Identity")) return false;
    sum = node.input(0);
  }
  return false;
}

bool divides_by_sum(const Node& node) {
  if (node.is("LpNormalization")) return node.attr("p", 2) == 1;
  return node.is("Div") && is_sum_of(node.input(1), node.input(0));
}

// p, where the node is the Concat of 1 - p and p; null otherwise.
const Value* of_two_classes(const Node& node) {
  if (!node.is("Concat") || node.num_inputs() != 2 || !node.input(0) || !node.input(0)->producer()) return nullptr;
  const Node& rest = *node.input(0)->producer();
  if (!rest.is("Sub") || rest.input(1) != node.input(1)) return nullptr;
  const Tensor one = constant_of(rest.input(0));
  return !one.empty() && is_float(one.dtype()) && one.holds_only(1) ? node.input(1) : nullptr;
}

// Whether the node keeps probabilities away from 0 and 1 by a little, as Keras does before it takes logarithms.
bool bounds_probabilities(const Node& node) {
  constexpr double kMost = 0.01;
  if (!node.is("Clip")) return false;
  const auto is_near = [&](int i, double end) {
    if (i >= node.num_inputs() || !node.input(i)) return true;
    const Tensor bound = constant_of(node.input(i));
    return bound.size() == 1 && is_float(bound.dtype()) && std::abs(bound.at(0) - end) <= kMost;
  };
  return is_near(1, 0) && is_near(2, 1);
}

// Whether the numbers that a Softmax makes sum to 1 over an axis that losses take for that of classes: the second or
// the last one. Weights of attention sum to 1 over another one.
bool is_over_classes(const Node& softmax) {
  const TensorType& type = softmax.output(0)->type();
  if (!type.has_rank()) return true;
  const int64_t axis = softmax.attr("axis", -1), at = axis < 0 ? axis + type.rank() : axis;
  return at == 1 || at == type.rank() - 1;
}

bool follows_from_input(const Value* output) {
  const Graph& graph = output->graph();
  Liveness live;
  live.need(output);
  live.trace(graph);
  const auto& inputs = graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Value* input) { return !input->is_initializer() && live.needs(input); });
}

// Whether the axis of classes, as cross_entropy finds it, has one place.
bool has_one_class(const Value& value) {
  return value.has_rank() && value.rank() > 1 && value.type().dims->at(value.rank() == 3 ? 2 : 1) == Dim(1);
}

// What the loss makes probabilities with: "softmax", "sigmoid", or "" where it takes the prediction as it is.
std::string_view activation_of(const LossTerm& term) {
  if (!takes_logits(*term.row)) return "";
  return prediction_of(term) == Prediction::kYesNo ? "sigmoid" : "softmax";
}

std::string option_with(LossTerm term, const std::string& prediction) {
  term.weight = 1;
  term.arguments.names[0].text = prediction;
  return concat("--loss \"", to_string(term), "\"");
}

// How to compare probabilities without a second softmax or sigmoid.
std::string way_out(const LossTerm& term, std::string_view activation, const Probabilities& p, const Value& value) {
  const bool fits = p.of_classes == (activation == "softmax");
  if (p.scores && fits) return concat("compare what it makes them of: ", option_with(term, p.scores->name()));
  const std::string name = quoted_if_needed(value.name());
  if (p.of_classes && activation == "softmax")
    return concat("take their logarithms: --loss \"nll(", name, ", log=true)\"");
  if (p.scores && activation == "softmax")
    return concat("each is a yes or no: --loss \"bce_with_logits(", quoted_if_needed(p.scores->name()), ")\"");
  return "cut the model before it (--cut), or take another loss";
}

}  // namespace

std::optional<Probabilities> probabilities_of(const Value& value) {
  bool moved = false, of_classes = false;
  const Value* v = &value;
  for (int i = 0; i < kMaxSteps && v && v->producer(); ++i) {
    const Node& node = *v->producer();
    if (node.is("Softmax")) {
      if (!is_over_classes(node)) return std::nullopt;
      return Probabilities{&node, moved ? nullptr : node.input(0), true};
    }
    if (node.is("Sigmoid")) return Probabilities{&node, moved || of_classes ? nullptr : node.input(0), of_classes};
    if (const Value* p = of_two_classes(node)) {
      of_classes = true;
      v = p;
      continue;
    }
    const bool divides = divides_by_sum(node);
    const bool keeps = node.is("Identity") || node.is("Cast") || bounds_probabilities(node);
    if (!divides && !is_moved(node) && !keeps) return std::nullopt;
    of_classes = of_classes || divides;
    moved = moved || is_moved(node);
    v = node.input(0);
  }
  return std::nullopt;
}

const Value* default_prediction(const Graph& graph) {
  const Value* first = nullptr;
  for (const Value* output : graph.outputs()) {
    if (!is_float(output->dtype())) continue;
    if (follows_from_input(output)) return output;
    if (!first) first = output;
  }
  return first;
}

DefaultLoss default_loss(const Graph& graph) {
  const BuildOptions defaults;
  const Value* output = default_prediction(graph);
  if (!output) return {defaults.loss, std::nullopt};
  if (output->has_rank() && output->rank() < 2) {
    const bool is_number = output->rank() == 0 || output->type().dims->at(0) == Dim(1);
    return {is_number ? quoted_if_needed(output->name()) : "mse", std::nullopt};
  }
  const auto p = probabilities_of(*output);
  if (!p && has_one_class(*output))
    return {"mse", Finding{output->name(), "has one number for each sample and no axis of classes",
                           "the loss is mse; where the number is the score of a yes or no, --loss bce_with_logits"}};
  if (!p) return {defaults.loss, std::nullopt};
  const std::string what = concat("holds probabilities, which ", p->node->label(), " makes");
  if (!p->of_classes) {
    if (!p->scores) return {defaults.loss, std::nullopt};
    return {concat("bce_with_logits(", quoted_if_needed(p->scores->name()), ")"),
            Finding{output->name(), what,
                    concat("each is a yes or no; the loss compares '", p->scores->name(),
                           "', of which it makes them, for bce_with_logits has a sigmoid of its own")}};
  }
  if (p->scores)
    return {concat(defaults.loss, "(", quoted_if_needed(p->scores->name()), ")"),
            Finding{output->name(), what,
                    concat("the loss compares '", p->scores->name(), "', of which it makes them, for ", defaults.loss,
                           " has a softmax of its own")}};
  return {concat("nll(", quoted_if_needed(output->name()), ", log=true)"),
          Finding{output->name(), what, "the loss takes their logarithms"}};
}

std::vector<Finding> describe_predictions(const Graph& graph, const BuildOptions& options) {
  if (options.loss_model || options.loss.empty()) return {};
  std::vector<LossTerm> terms;
  try {
    terms = parse_loss(options.loss);
  } catch (const Error&) {  // the pass that builds the loss says it
    return {};
  }
  std::vector<Finding> findings;
  for (LossTerm& term : terms) {
    if (!term.row) continue;
    auto& names = term.arguments.names;
    const Value* value = names.empty() ? default_prediction(graph) : graph.find(names[0].text);
    if (!value) continue;
    if (names.empty()) names.push_back({value->name(), false, 0});
    const std::string_view activation = activation_of(term), name = term.row->name;
    if (activation == "softmax" && !find_option(term, "axis") && has_one_class(*value)) {
      findings.push_back({"loss",
                          concat("'", value->name(), "' is ", to_string(value->type()),
                                 ": the softmax of one class is 1, so that nothing is learned by ", name),
                          "for numbers --loss mse, for a yes or no --loss bce_with_logits"});
      continue;
    }
    const auto p = probabilities_of(*value);
    if (!p) continue;
    const std::string what = concat("'", value->name(), "' holds probabilities, which ", p->node->label(), " makes; ");
    if (!activation.empty()) {
      findings.push_back({"loss", concat(what, name, " has a ", activation, " of its own, so that there are two"),
                          way_out(term, activation, *p, *value)});
    } else if (name == "nll" && !flag_of(term, "log")) {
      findings.push_back({"loss", concat(what, "nll takes their logarithms"),
                          concat("--loss \"nll(", quoted_if_needed(value->name()), ", log=true)\"")});
    }
  }
  return findings;
}

}  // namespace onnx_train
