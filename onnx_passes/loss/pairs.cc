#include "onnx_passes/loss/pairs.h"

#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss_table.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/loss/term_builder.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/select.h"

namespace onnx_train {
namespace {

constexpr int64_t kIgnoredLabel = -100;

bool is_over_pairs(const LossTerm& term) {
  return term.row && term.row->name == std::string("dpo") && term.arguments.names.size() < num_predictions(*term.row);
}

// The input that the answers' labels are: one of the model's, or a new one.
std::string labels_name(const Graph& graph) {
  std::string name = "labels";
  for (int i = 2; graph.find(name) && !graph.is_input(graph.find(name)); ++i) name = concat("labels_", i);
  return name;
}

void check_logits(const LossTerm& term, const Value* logits, const std::string& name, const ExpressionReader& reader) {
  if (logits && is_float(logits->dtype()) && logits->has_rank() && logits->rank() == 3) return;
  reader.fail_at(term.loss.column,
                 concat("dpo without log-probabilities compares answers of a language model, whose prediction is "
                        "float[batch,tokens,vocabulary]; '",
                        name, "' is ", logits ? to_string(logits->type()) : "no value of the model",
                        "; or name them: dpo(chosen, rejected, reference_chosen, reference_rejected)"),
                 ErrorCode::kLossMisfit);
}

// Σ log p[label] of each row, or the mean over its labels: [rows].
Var log_probabilities(Var logits, Var labels, bool averages) {
  Builder& b = logits.builder();
  const Attrs attrs = {{"axis", int64_t{2}}, {"ignore_index", kIgnoredLabel}};
  const Var ignored = equal(labels, b.scalar(DType::kInt64, static_cast<double>(kIgnoredLabel)));
  const Var index = call(b, "ClassIndex", {labels, logits}, attrs);
  const Var zero = b.scalar(logits.dtype(), 0);
  const Var each = where(ignored, zero, picked(log_softmax(logits, 2), index, 2));
  const Var sum = reduce_sum(each, std::vector<int64_t>{1}, /*keepdims=*/false);
  if (!averages) return sum;
  const Var counted = where(ignored, zero, b.scalar(logits.dtype(), 1));
  return sum / max(reduce_sum(counted, std::vector<int64_t>{1}, /*keepdims=*/false), b.scalar(logits.dtype(), 1));
}

void name_value(Var value, const std::string& name) {
  Graph& graph = value.builder().graph();
  if (graph.find(name))
    fail_as(ErrorCode::kLossModel, "[Loss] the model has a value '", name, "', which dpo adds: rename it");
  graph.rename(value.value(), name);
}

// Names the chosen and the rejected one of each pair of rows.
void add_both(Var rows, const char* chosen, const char* rejected) {
  rows.builder().set_name("loss/pairs");
  const Var pairs = reshape(rows, std::vector<int64_t>{-1, kRowsOfPair});
  name_value(squeeze(slice(pairs, 0, 1, 1), {1}), chosen);
  name_value(squeeze(slice(pairs, 1, 2, 1), {1}), rejected);
}

// The logits of the reference, whose nodes are named reference/<name>.
Var add_reference(Builder* b, const Model& reference, const std::unordered_set<std::string>& copied) {
  Graph& algorithm = b->graph();
  const Graph& model = *algorithm.parent();
  std::vector<Value*> arguments;
  for (const Value* input : reference.graph->inputs()) arguments.push_back(model.find(input->name()));
  for (const Value* weight : reference.graph->initializers()) {
    Value* own = model.find(weight->name());
    const bool shares = own && own->shared_initializer() == weight->shared_initializer() && !copied.count(own->name());
    arguments.push_back(shares ? own
                               : algorithm.add_constant(algorithm.unique_name("reference/" + weight->name()),
                                                        weight->shared_initializer()));
  }
  Node* const last = algorithm.last();
  Value* logits = instantiate(*reference.graph, &algorithm, arguments, "reference").front();
  for (Node* n = last ? last->next() : algorithm.first(); n; n = n->next()) infer_types(n);
  return b->var(logits);
}

}  // namespace

bool is_of_pairs(const std::string& name) { return std::ranges::count(kLogProbabilities, name) > 0; }

std::optional<PairLoss> take_pair_loss(std::vector<LossTerm>* terms, const Graph& graph,
                                       const ExpressionReader& reader) {
  const auto found = std::ranges::find_if(*terms, is_over_pairs);
  if (found == terms->end()) return std::nullopt;
  LossTerm& term = *found;
  if (terms->size() > 1) {
    reader.fail_at(term.loss.column,
                   "dpo without log-probabilities stands alone: the rows of a batch are pairs, which other losses do "
                   "not know",
                   ErrorCode::kLossMisfit);
  }
  std::vector<Word>& names = term.arguments.names;
  const Value* logits = names.empty() ? default_prediction(graph) : graph.find(names[0].text);
  const std::string name = !names.empty() ? names[0].text : logits ? logits->name() : "the prediction";
  check_logits(term, logits, name, reader);
  PairLoss pairs{name, labels_name(graph), choice_of(term, "loss_type") == "ipo", !flag_of(term, "reference_free")};
  names.clear();
  for (const char* value : kLogProbabilities) {
    if (names.size() < 2 || pairs.has_reference) names.push_back({value, false, term.loss.column});
  }
  return pairs;
}

std::unordered_set<std::string> copied_for_reference(const Model& model, const std::vector<std::string>& train,
                                                     const std::vector<std::string>& freeze) {
  std::unordered_set<std::string> names;
  for (const Value* weight : select_trainable(model, train, freeze)) names.insert(weight->name());
  for (const Value* value : model.graph->initializers()) {
    if (is_running_statistic(value)) names.insert(value->name());
  }
  return names;
}

std::string describe_reference(const Model& reference, const std::unordered_set<std::string>& copied) {
  int64_t weights = 0, elements = 0;
  for (const Value* value : reference.graph->initializers()) {
    if (!copied.count(value->name())) continue;
    ++weights;
    elements += num_elements(value->type().shape());
  }
  if (weights == 0) return "the model without its adapters, whose weights it shares";
  return concat("a frozen copy of ", weights, " of the weights that train, ", elements, " elements");
}

void add_pairs(Builder* b, const PairLoss& pairs, const std::function<Value*(Value*)>& version, const Model* reference,
               const std::unordered_set<std::string>& copied) {
  Graph& algorithm = b->graph();
  const Graph& model = *algorithm.parent();
  b->set_name("loss/pairs");
  Value* value = model.find(pairs.logits);
  const Var logits = b->var(version(value));
  Value* known = algorithm.find(pairs.labels);
  const Dims dims(value->type().dims->begin(), value->type().dims->begin() + 2);
  const Var labels =
      cast(b->var(known ? known : algorithm.add_input(pairs.labels, {DType::kInt64, dims})), DType::kInt64);
  add_both(log_probabilities(logits, labels, pairs.averages), kLogProbabilities[0], kLogProbabilities[1]);
  if (!reference) return;
  const Var before = cast_like(add_reference(b, *reference, copied), logits);
  b->set_name("loss/reference");
  const Var rows = call(*b, "StopGradient", {log_probabilities(before, labels, pairs.averages)});
  add_both(rows, kLogProbabilities[2], kLogProbabilities[3]);
}

}  // namespace onnx_train
