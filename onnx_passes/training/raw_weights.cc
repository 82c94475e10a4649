#include "onnx_passes/training/raw_weights.h"

#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/model/training_versions.h"

namespace onnx_train {
namespace {

void read_raw_weights(const Model& model, const RawWeights& raw, EntryPoint* entry) {
  Liveness live;
  for (const Value* output : entry->algorithm->outputs()) live.need(output);
  for (const WeightGradient& g : entry->gradients) live.need(g.gradient);  // nothing reads them yet
  live.trace(*entry->algorithm);
  live.trace(*model.graph);
  TrainingVersions versions(entry, entry->algorithm->first());
  for (const auto& [weight, made] : raw) versions.set(const_cast<Value*>(weight), made);
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    if (live.runs(node) && versions.are_read_by(*node)) versions.copy(*node);
  }
  versions.redirect(entry->algorithm.get());
}

}  // namespace

RawWeights add_raw_weights(Model* model, const std::vector<Value*>& weights) {
  RawWeights raw;
  for (const Value* weight : weights) {
    // In the graph, since both halves of an accumulated step read it.
    Value* made =
        model->graph->add_initializer(model->unique_name("raw/" + weight->name()), weight->shared_initializer());
    made->set_role({roles::kRaw, weight->name()});
    raw.emplace(weight, made);
  }
  for (EntryPoint& entry : model->entry_points) {
    if (!entry.is(Entry::kEvaluate)) read_raw_weights(*model, raw, &entry);
  }
  return raw;
}

}  // namespace onnx_train
