#include "onnx_passes/passes/gradients.h"

#include <unordered_set>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes/entry_point.h"
#include "onnx_passes/passes/loss_scaling.h"

namespace onnx_train {
namespace {

// The gradient of the loss, times the loss scale if there is one.
std::vector<Value*> add_scaled_gradients(const Model& model, EntryPoint* step, const std::vector<Value*>& weights,
                                         const BuildOptions& options) {
  Graph* algorithm = step->algorithm.get();
  Value* loss = algorithm->outputs()[0];
  Builder b(algorithm);
  b.set_name("grad/" + loss->name());
  const auto scale = loss_scale(model, step, &b, options);
  if (!scale) return add_gradients(algorithm, loss, weights);
  return add_gradients(algorithm, {loss}, {(ones_like(b.var(loss)) * cast_like(*scale, b.var(loss))).value()}, weights);
}

// The terms of a loss whose counts differ, where accumulated batches count by them: the gradient of each is summed
// alone.
std::vector<Value*> accumulated_parts(const EntryPoint& step, const BuildOptions& options) {
  std::vector<Value*> parts;
  for (Value* output : step.algorithm->outputs()) {
    if (output->has_role(roles::kLossPart)) parts.push_back(output);
  }
  return options.accumulate && !options.mean_of_batches ? parts : std::vector<Value*>();
}

// The gradients of each part; returns their sums, the gradients of the loss.
std::vector<Value*> add_part_gradients(EntryPoint* step, const std::vector<Value*>& parts,
                                       const std::vector<Value*>& weights) {
  Builder b(step->algorithm.get());
  std::vector<Value*> sums(weights.size());
  for (Value* part : parts) {
    step->part_gradients.push_back(add_gradients(&b.graph(), part, weights));
    const std::vector<Value*>& found = step->part_gradients.back();
    for (size_t i = 0; i < weights.size(); ++i) {
      b.set_name("grad/" + weights[i]->name());
      if (found[i]) sums[i] = sums[i] ? (b.var(sums[i]) + b.var(found[i])).value() : found[i];
    }
  }
  return sums;
}

// Removes what belongs to weights without gradients.
void keep_reached(std::vector<std::vector<Value*>>* by_part, const std::vector<Value*>& sums) {
  for (std::vector<Value*>& gradients : *by_part) {
    std::vector<Value*> kept;
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i]) kept.push_back(gradients[i]);
    }
    gradients = std::move(kept);
  }
}

// The nodes at which every path from the weights to the loss ends, if any: their output is piecewise constant, so its
// gradient is zero.
std::string flat_nodes(const Model& model, const EntryPoint& step, const std::vector<Value*>& weights) {
  std::unordered_set<const Value*> reached(weights.begin(), weights.end());
  std::string text;
  for (const Graph* graph : {model.graph.get(), step.algorithm.get()}) {
    for (const Node* node = graph->first(); node; node = node->next()) {
      bool reads = false;
      for_each_input(*node, [&](const Value* v) { reads = reads || reached.count(v); });
      if (!reads || !node->output() || !is_float(node->output()->dtype())) continue;
      const GradientRule* rule = find_gradient_rule(*node);
      if (rule && rule->trait == Trait::kZero) {
        text += concat(text.empty() ? "" : ", ", node->label());
      } else {
        reached.insert(node->outputs().begin(), node->outputs().end());
      }
    }
  }
  return text;
}

bool run(Model& model, const BuildOptions& options) {
  EntryPoint* step = model.find_entry_point("step");
  if (!step || step->algorithm->outputs().empty()) fail("[Gradients] the model has no loss; run the pass 'loss' first");
  const std::vector<Value*> weights = select_trainable(model, options.train, options.freeze);
  if (weights.empty()) {
    const bool chosen = !options.train.empty() || !options.freeze.empty();
    fail("[Gradients] ", chosen ? "--train and --freeze leave nothing to train"
                                : "the model has no float initializer, so there is nothing to train");
  }
  const std::vector<Value*> parts = accumulated_parts(*step, options);
  const std::vector<Value*> found =
      parts.empty() ? add_scaled_gradients(model, step, weights, options) : add_part_gradients(step, parts, weights);
  keep_reached(&step->part_gradients, found);
  std::vector<std::string> unreached;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (found[i]) {
      step->gradients.push_back({weights[i], found[i]});
    } else {
      unreached.push_back(weights[i]->name());
    }
  }
  if (unreached.size() == weights.size()) {
    const std::string flat = flat_nodes(model, *step, weights);
    fail("[Gradients] the loss '", model.metadata("onnx_train.loss"), "' depends on none of the ", weights.size(),
         " weights to train", flat.empty() ? "" : concat(": the gradient is zero after ", flat),
         "; check --loss, --train and --freeze");
  }
  if (!unreached.empty()) model.set_metadata("onnx_train.not_trained", json_list(unreached));
  return true;
}

}  // namespace

Pass gradients(const BuildOptions& options) {
  return {"gradients", [options](Model& model) { return run(model, options); }};
}

}  // namespace onnx_train
