#include "onnx_passes/passes/accumulate.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes/entry_point.h"
#include "onnx_passes/passes/loss_expression.h"
#include "onnx_passes/passes/optimizer.h"

namespace onnx_train {
namespace {

// Values that both halves read.
struct Shared {
  std::vector<WeightGradient> gradients;
  std::vector<Value*> sums;
  Value* step;
  Value* count;
};

Shared add_shared_state(Model* model, const EntryPoint& entry) {
  Graph& graph = *model->graph;
  Shared shared;
  shared.gradients = entry.gradients;
  for (const WeightGradient& g : shared.gradients) {
    shared.sums.push_back(add_slot(*model, &graph, g.weight, roles::kGradientSum));
  }
  shared.step = add_step_count(*model, &graph);
  shared.count = add_state(*model, &graph, "state/accumulated", Tensor::scalar<int64_t>(0), {roles::kAccumulated, ""});
  return shared;
}

// sum' = grad + (sum, or 0 if an update has used it already)
void add_sums(const Model& model, EntryPoint* entry, const Shared& shared) {
  Graph* algorithm = entry->algorithm.get();
  Value* seen =
      add_state(model, algorithm, "state/accumulated_for", Tensor::scalar<int64_t>(-1), {roles::kAccumulatedFor, ""});
  Builder b(algorithm);
  b.set_name("accumulating");
  const Var accumulating = equal(b.var(seen), b.var(shared.step));
  for (size_t i = 0; i < shared.sums.size(); ++i) {
    b.set_name("next/" + shared.sums[i]->name());
    const Var sum = b.var(shared.sums[i]);
    bind_state(entry, shared.sums[i], where(accumulating, sum, 0.0) + b.var(shared.gradients[i].gradient));
  }
  b.set_name("next/" + shared.count->name());
  bind_state(entry, shared.count, where(accumulating, b.var(shared.count), 0.0) + 1.0);
  bind_state(entry, seen, b.var(shared.step));
}

void add_totals(EntryPoint* entry, const Shared& shared, bool sum_over_batch) {
  Builder b(entry->algorithm.get());
  for (size_t i = 0; i < shared.sums.size(); ++i) {
    const Var sum = b.var(shared.sums[i]);
    b.set_name("micro_batches");
    const Var count = sum_over_batch ? Var() : cast_like(b.var(shared.count), sum);
    Value* weight = shared.gradients[i].weight;
    b.set_name("grad/" + weight->name());
    entry->gradients.push_back({weight, (count ? sum / count : b.op("Identity", {sum})).value()});
  }
}

bool run(Model& model, const BuildOptions& options) {
  EntryPoint* step = model.find_entry_point("step");
  if (!step) fail("[Accumulate] the model has no entry point 'step'; run the pass 'gradients' first");
  step->algorithm->shell().set_name("accumulate");
  const Shared shared = add_shared_state(&model, *step);
  add_sums(model, step, shared);
  const bool is_sum = !options.loss_model && onnx_train::is_sum(parse_loss(options.loss));
  add_totals(&model.add_entry_point("apply"), shared, is_sum);  // this invalidates `step`
  return true;
}

}  // namespace

Pass accumulate(const BuildOptions& options) {
  return {"accumulate", [options](Model& model) { return run(model, options); }};
}

}  // namespace onnx_train
