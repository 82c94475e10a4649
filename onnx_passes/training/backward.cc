#include "onnx_passes/training/backward.h"
#include "onnx_passes/training/nothing_to_train.h"

#include <algorithm>

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/precision/loss_scaling.h"

namespace onnx_train {
namespace {

// The gradients of the loss, or of a part of it, times the loss scale if there is one.
std::vector<Value*> add_scaled_gradients(const Model& model, EntryPoint* step, Value* loss,
                                         const std::vector<Value*>& weights, const BuildOptions& options) {
  Graph* algorithm = step->algorithm.get();
  Builder b(algorithm);
  b.set_name("grad/" + loss->name());
  const auto scale = loss_scale(model, step, &b, options);
  if (!scale) return add_gradients(algorithm, loss, weights);
  const Var one = ones_like(b.var(loss));
  return add_gradients(algorithm, {loss}, {(one * cast_like(*scale, one)).value()}, weights);
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
std::vector<Value*> add_part_gradients(const Model& model, EntryPoint* step, const std::vector<Value*>& parts,
                                       const std::vector<Value*>& weights, const BuildOptions& options) {
  Builder b(step->algorithm.get());
  std::vector<Value*> sums(weights.size());
  for (Value* part : parts) {
    step->part_gradients.push_back(add_scaled_gradients(model, step, part, weights, options));
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
std::vector<const Node*> flat_nodes(const Model& model, const EntryPoint& step, const std::vector<Value*>& weights) {
  Liveness live;
  live.need(step.algorithm->outputs().at(0));
  live.trace(*step.algorithm);
  live.trace(*model.graph);
  Marks<Value> reached(weights);
  std::vector<const Node*> flat;
  for (const Graph* graph : {model.graph.get(), step.algorithm.get()}) {
    for (const Node* node = graph->first(); node; node = node->next()) {
      bool reads = false;
      for_each_input(*node, [&](const Value* v) { reads = reads || reached.contains(v); });
      if (!reads || !live.runs(node) || reads_shape_only(*node)) continue;
      const GradientRule* rule = find_gradient_rule(*node);
      const auto& outputs = node->outputs();
      const auto is_smooth = [](const Value* v) {
        return v && (is_float(v->dtype()) || v->dtype() == DType::kUndefined);
      };
      if ((rule && rule->trait == Trait::kZero) || std::none_of(outputs.begin(), outputs.end(), is_smooth)) {
        flat.push_back(node);
        continue;
      }
      for (const Value* output : outputs) {
        if (is_smooth(output)) reached.insert(output);
      }
    }
  }
  return flat;
}

// What the loss that depends on no weight depends on instead.
std::string why_none(const Model& model, const EntryPoint& step, const std::vector<Value*>& weights) {
  const std::vector<const Node*> flat = flat_nodes(model, step, weights);
  if (flat.empty()) return "; check --loss, --train and --freeze";
  constexpr size_t kMostShown = 3;
  const std::string nodes = first_few(flat, kMostShown, [](const Node* node) { return node->label(); });
  return concat(
      ": the gradient is zero after ", nodes,
      find_gradient_rule(*flat[0]) ? "; check --loss, --train and --freeze" : "; " + replacement_advice(*flat[0]));
}

bool add_backward(Model& model, const BuildOptions& options) {
  EntryPoint* step = model.find_entry_point(Entry::kStep);
  if (!step || step->algorithm->outputs().empty()) fail("[Gradients] the model has no loss; run the pass 'loss' first");
  const std::vector<Value*> weights = select_trainable(model, options.train, options.freeze);
  if (weights.empty())
    fail_as(ErrorCode::kNothingToTrain, "[Gradients] ", nothing_to_train("the model", *model.graph, options));
  forget_constants(&model, weights);
  const std::vector<Value*> parts = accumulated_parts(*step, options);
  Value* loss = step->algorithm->outputs()[0];
  const std::vector<Value*> found = parts.empty() ? add_scaled_gradients(model, step, loss, weights, options)
                                                  : add_part_gradients(model, step, parts, weights, options);
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
    fail_as(ErrorCode::kLossReachesNothing, "[Gradients] the loss '", model.metadata("onnx_train.loss"),
            "' depends on ",
            weights.size() == 1 ? "no weight to train" : concat("none of the ", weights.size(), " weights to train"),
            why_none(model, *step, weights));
  }
  if (!unreached.empty()) model.set_metadata("onnx_train.not_trained", json_list(unreached));
  return true;
}

}  // namespace

Pass gradients(const BuildOptions& options) {
  return {"gradients", [options](Model& model) { return add_backward(model, options); }};
}

}  // namespace onnx_train
