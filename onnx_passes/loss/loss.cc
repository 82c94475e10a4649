#include "onnx_passes/loss/loss.h"

#include <algorithm>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/loss/loss_model.h"
#include "onnx_passes/loss/loss_resolution.h"
#include "onnx_passes/loss/loss_table.h"
#include "onnx_passes/loss/loss_terms.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/model/table_metadata.h"
#include "onnx_passes/model/training_versions.h"

namespace onnx_train {
namespace {

// The expression with all defaults filled in.
std::string resolved_text(const std::vector<LossTerm>& terms) {
  std::string text;
  for (const LossTerm& term : terms) {
    const bool minus = term.weight < 0;
    if (!text.empty()) {
      text += minus ? " - " : " + ";
    } else if (minus) {
      text += "-";
    }
    if (std::abs(term.weight) != 1) text += number_text(std::abs(term.weight)) + "*";
    text += to_string(term);
  }
  return text;
}

// Weighted terms whose counts are proportional in every batch, so that they have one mean.
using Part = LossResult;

void add_term(std::vector<Part>* parts, const Part& made, double weight) {
  made.loss.builder().set_name("loss/part");
  const Var weighted = weight == 1 ? made.loss : made.loss * weight;
  for (Part& part : *parts) {
    if (part.key != made.key) continue;
    part.loss = part.loss + cast_like(weighted, part.loss);
    return;
  }
  parts->push_back(made);
  parts->back().loss = weighted;
}

// The loss, and what it is a mean over: see roles.h.
void add_loss(EntryPoint* entry, const std::vector<Part>& parts) {
  Var total = parts[0].loss;
  total.builder().set_name("loss/part");
  for (size_t i = 1; i < parts.size(); ++i) total = total + cast_like(parts[i].loss, total);
  add_result(entry, roles::kLoss, total);
  if (parts.size() == 1 && parts[0].count) add_result(entry, roles::kLossCount, parts[0].count);
  for (size_t i = 0; parts.size() > 1 && i < parts.size(); ++i) {
    const std::string number = std::to_string(i);
    add_result(entry, roles::kLossPart, parts[i].loss)->set_role({roles::kLossPart, number});
    if (!parts[i].count) continue;
    add_result(entry, roles::kLossPartCount, parts[i].count)->set_role({roles::kLossPartCount, number});
  }
}

// Sums the terms in one entry point and adds its results. Returns the terms, joined by what they count.
std::vector<Part> add_terms(EntryPoint* entry, const Graph& inference, const std::vector<LossTerm>& terms,
                            const std::function<Value*(Value*)>& version) {
  Builder b(entry->algorithm.get());
  LossBuilder losses(&b, inference, version);
  std::vector<Part> parts;
  Var accuracy, accuracy_count;
  std::vector<std::pair<std::string, Var>> metrics;
  for (const LossTerm& term : terms) {
    b.set_name("loss/" + term.loss.text);
    const Part made = losses.build(term);
    if (!accuracy) accuracy = made.accuracy, accuracy_count = made.accuracy_count;
    if (metrics.empty()) metrics = made.metrics;
    add_term(&parts, made, term.weight);
  }
  add_loss(entry, parts);
  if (accuracy) {
    add_result(entry, roles::kAccuracy, accuracy);
    add_result(entry, roles::kAccuracyCount, accuracy_count);
  }
  for (const auto& [name, value] : metrics) add_result(entry, kRewards + name, value);
  return parts;
}

// Records what the loss is a mean over, and how the outputs of several batches make one.
void describe(Model* model, const std::vector<Part>& parts, const EntryPoint& evaluation) {
  std::string over;
  for (const Part& part : parts) over += (over.empty() ? "" : ", ") + (part.count ? part.what : "nothing: a sum");
  const bool is_sum = std::none_of(parts.begin(), parts.end(), [](const Part& part) { return bool(part.count); });
  model->set_metadata("onnx_train.mean_over", over);
  model->set_metadata(
      "onnx_train.outputs",
      concat("{\"loss\": \"", is_sum ? "sum" : "mean", "\"",
             parts.size() == 1 && !is_sum ? ", \"loss_count\": \"sum\"" : "",
             evaluation.output(roles::kAccuracy) ? ", \"accuracy\": \"mean\", \"accuracy_count\": \"sum\"" : "",
             ", \"grad_norm\": \"last\"}"));
}

// Records the output of the model that holds scores of classes, for `predict`, or that none does.
void describe_scores(Model* model, const std::vector<LossTerm>& terms) {
  const Graph& graph = *model->graph;
  std::string scores;
  for (const LossTerm& term : terms) {
    const Prediction prediction = term.row ? prediction_of(term) : Prediction::kOther;
    if (prediction == Prediction::kEstimate) scores = kNoScores;
    if (prediction != Prediction::kClasses && prediction != Prediction::kYesNo) continue;
    const Value* output = graph.find(term.arguments.names[0].text);
    if (!output || !graph.is_output(output)) continue;
    const int64_t axis =
        is_over_classes(*term.row) ? integer_of(term, "axis") : std::min<int64_t>(1, output->rank() - 1);
    scores = json_list({output->name(), prediction == Prediction::kClasses ? "classes" : "yes_no", std::to_string(axis),
                        probabilities_of(*output) ? "probabilities" : "scores"});
    break;
  }
  if (scores != model->metadata(kScoresOf)) model->set_metadata(kScoresOf, scores);  // that of an earlier loss goes
}

// An output whose node is inlined when it is differentiated would become another value; inlines such nodes now.
void expand_body(Graph* graph, const std::string& output) {
  for (Value* value = graph->find(output); value && graph->is_output(value); value = graph->find(output)) {
    Node* node = value->producer();
    if (!node || find_gradient_rule(*node) || !inline_function(node)) return;
  }
}

bool add_model(Model& model, const LossModel& loss) {
  join_opsets(&model, loss);
  const auto add = [&](EntryPoint* entry, const std::function<Value*(Value*)>& version) {
    Builder b(entry->algorithm.get());
    const Var made = add_loss_model(&b, loss, version);
    const std::vector<Part> parts = {LossBuilder(&b, *model.graph, version).of_samples(made)};
    add_loss(entry, parts);
    return parts;
  };
  if (!model.find_entry_point(Entry::kStep)) model.add_entry_point(Entry::kStep);
  EntryPoint* step = model.find_entry_point(Entry::kStep);
  add(step, [&](Value* v) { return training_value(*step, v); });
  const std::vector<Part> parts = add(&model.add_entry_point(Entry::kEvaluate), [](Value* v) { return v; });
  model.set_metadata("onnx_train.loss", loss.name);
  describe(&model, parts, *model.find_entry_point(Entry::kEvaluate));
  return true;
}

// Adds the teacher to both entry points that compute the loss.
void add_teachers(Model* model, const LossModel& teacher, EntryPoint* step, EntryPoint* evaluation) {
  join_opsets(model, teacher);
  Builder training(step->algorithm.get()), inference(evaluation->algorithm.get());
  add_teacher(&training, teacher, [&](Value* v) { return training_value(*step, v); });
  add_teacher(&inference, teacher, [](Value* v) { return v; });
  model->set_metadata("onnx_train.teacher", teacher.name);
  // Both read the same batch.
  for (const char* key : {kPreprocess, kClassNames}) {
    const std::string known = teacher.model.metadata(key);
    if (model->metadata(key).empty() && !known.empty()) model->set_metadata(key, known);
  }
}

// Adds the log-probabilities of pairs to both entry points, and records that batches have pairs.
void add_pairs_to_both(Model* model, const PairLoss& pairs, const BuildOptions& options,
                       const MakeReference& make_reference, EntryPoint* step, EntryPoint* evaluation) {
  if (pairs.has_reference && !make_reference)
    fail_as(ErrorCode::kLossMisfit, "[Loss] dpo without a reference of its own is for trainings: onnx-train build");
  const auto copied = copied_for_reference(*model, options.train, options.freeze);
  const auto add = [&](EntryPoint* entry, bool rounds, const std::function<Value*(Value*)>& version) {
    std::optional<LossModel> reference;
    if (pairs.has_reference) reference.emplace(LossModel{"reference", make_reference(*model, pairs.logits, rounds)});
    if (reference) join_opsets(model, *reference);
    if (reference) model->set_metadata(kReference, describe_reference(reference->model, copied));
    Builder b(entry->algorithm.get());
    add_pairs(&b, pairs, version, reference ? &reference->model : nullptr, copied);
  };
  add(step, /*rounds=*/true, [&](Value* v) { return training_value(*step, v); });
  add(evaluation, /*rounds=*/false, [](Value* v) { return v; });
  model->set_metadata(kPairs, pairs.labels);
}

bool run(Model& model, const BuildOptions& options, const MakeReference& make_reference) {
  if (options.loss_model) return add_model(model, *options.loss_model);
  std::vector<LossTerm> terms = parse_loss(options.loss);
  for (const LossTerm& term : terms) {
    if (term.is_output) expand_body(model.graph.get(), term.loss.text);
  }
  if (!model.find_entry_point(Entry::kStep)) model.add_entry_point(Entry::kStep);
  EntryPoint& evaluation = model.add_entry_point(Entry::kEvaluate);
  EntryPoint* step = model.find_entry_point(Entry::kStep);
  if (options.teacher) add_teachers(&model, *options.teacher, step, &evaluation);
  const ExpressionReader reader("--loss", options.loss);
  const auto pairs = take_pair_loss(&terms, *model.graph, reader);
  if (pairs) add_pairs_to_both(&model, *pairs, options, make_reference, step, &evaluation);
  for (const char* key : {kPairs, kReference}) {  // of an earlier loss
    if (!pairs && !model.metadata(key).empty()) model.set_metadata(key, "");
  }
  resolve(&terms, {*model.graph, options.teacher || pairs ? evaluation.algorithm.get() : nullptr}, reader);

  add_terms(step, *model.graph, terms, [&](Value* v) { return training_value(*step, v); });
  const std::vector<Part> parts = add_terms(&evaluation, *model.graph, terms, [](Value* v) { return v; });

  if (pairs) terms[0].arguments.names = {{pairs->logits, false, 0}};
  model.set_metadata("onnx_train.loss", resolved_text(terms));
  describe(&model, parts, evaluation);
  describe_scores(&model, terms);
  return true;
}

}  // namespace

Pass loss(const BuildOptions& options, MakeReference make_reference) {
  return {"loss", [options, make = std::move(make_reference)](Model& model) { return run(model, options, make); }};
}

std::map<std::string, std::string> probability_inputs(const Model& model) {
  const std::string loss = model.metadata("onnx_train.loss");
  if (loss.empty() || is_loss_file(loss)) return {};
  std::map<std::string, std::string> inputs;
  try {
    for (const LossTerm& term : parse_loss(loss)) {
      const std::vector<Word>& names = term.arguments.names;
      for (size_t i = 0; term.row && i < std::min(names.size(), term.row->arguments.size()); ++i) {
        if (holds_probabilities(term, i, model.graph->find(names[i].text))) inputs[names[i].text] = term.loss.text;
      }
    }
  } catch (const Error&) {  // the metadata of a file may hold anything
  }
  return inputs;
}

}  // namespace onnx_train
