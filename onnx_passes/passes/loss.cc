#include "onnx_passes/passes/loss.h"

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inlining.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes/entry_point.h"
#include "onnx_passes/passes/loss_model.h"
#include "onnx_passes/passes/loss_resolution.h"
#include "onnx_passes/passes/loss_terms.h"
#include "onnx_passes/passes/training_versions.h"

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

// Sums the terms in one entry point and adds its results.
bool add_terms(EntryPoint* entry, const Graph& inference, const std::vector<LossTerm>& terms,
               const std::function<Value*(Value*)>& version) {
  Builder b(entry->algorithm.get());
  LossBuilder losses(&b, inference, version);
  Var total, accuracy;
  for (const LossTerm& term : terms) {
    b.set_name("loss/" + term.loss.text);
    const LossBuilder::Result made = losses.build(term);
    if (!accuracy) accuracy = made.accuracy;
    b.set_name("loss/part");
    const Var weighted = term.weight == 1 ? made.loss : made.loss * term.weight;
    total = total ? total + cast_like(weighted, total) : weighted;
  }
  add_result(entry, roles::kLoss, total);
  if (accuracy) add_result(entry, roles::kAccuracy, accuracy);
  return static_cast<bool>(accuracy);
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
    add_result(entry, roles::kLoss, add_loss_model(&b, loss, version));
  };
  if (!model.find_entry_point("step")) model.add_entry_point("step");
  EntryPoint* step = model.find_entry_point("step");
  add(step, [&](Value* v) { return training_value(*step, v); });
  add(&model.add_entry_point("evaluate"), [](Value* v) { return v; });
  model.set_metadata("onnx_train.loss", loss.name);
  model.set_metadata("onnx_train.outputs", R"({"loss": "mean", "grad_norm": "last"})");
  return true;
}

bool run(Model& model, const BuildOptions& options) {
  if (options.loss_model) return add_model(model, *options.loss_model);
  std::vector<LossTerm> terms = parse_loss(options.loss);
  for (const LossTerm& term : terms) {
    if (term.is_output) expand_body(model.graph.get(), term.loss.text);
  }
  resolve(&terms, *model.graph, options.loss);

  if (!model.find_entry_point("step")) model.add_entry_point("step");
  EntryPoint* step = model.find_entry_point("step");
  const bool has_accuracy = add_terms(step, *model.graph, terms, [&](Value* v) { return training_value(*step, v); });
  add_terms(&model.add_entry_point("evaluate"), *model.graph, terms, [](Value* v) { return v; });

  model.set_metadata("onnx_train.loss", resolved_text(terms));
  model.set_metadata("onnx_train.outputs",
                     concat("{\"loss\": \"", is_sum(terms) ? "sum" : "mean", "\"",
                            has_accuracy ? ", \"accuracy\": \"mean\"" : "", ", \"grad_norm\": \"last\"}"));
  return true;
}

}  // namespace

Pass loss(const BuildOptions& options) {
  return {"loss", [options](Model& model) { return run(model, options); }};
}

}  // namespace onnx_train
