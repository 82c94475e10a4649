#include "onnx_passes/passes/accumulate.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes/entry_point.h"
#include "onnx_passes/passes/gradients.h"
#include "onnx_passes/passes/loss_expression.h"
#include "onnx_passes/passes/optimizer.h"

namespace onnx_train {
namespace {

// What both halves read.
struct Shared {
  std::vector<Value*> weights, sums;
  Value* step;
  Value* count;
};

Shared add_shared_state(Model* model, const EntryPoint& entry) {
  Graph& graph = *model->graph;
  Shared shared;
  shared.weights = trained_weights(*model, entry);
  for (const Value* weight : shared.weights) {
    const Tensor zeros(weight->dtype(), weight->type().shape());
    shared.sums.push_back(graph.add_initializer(slot_name(weight, "grad"), zeros));
  }
  shared.step = graph.add_initializer(kStepState, Tensor::scalar<int64_t>(0));
  shared.count = graph.add_initializer("state/accumulated", Tensor::scalar<int64_t>(0));
  return shared;
}

// sum' = grad + (sum where the last update has not used it, else 0)
void add_sums(EntryPoint* entry, const Shared& shared) {
  Graph* algorithm = entry->algorithm.get();
  Value* seen = algorithm->add_initializer("state/accumulated_for", Tensor::scalar<int64_t>(-1));
  Builder b(algorithm);
  b.set_name("accumulating");
  const Var accumulating = equal(b.var(seen), b.var(shared.step));
  for (size_t i = 0; i < shared.weights.size(); ++i) {
    b.set_name("next/" + shared.sums[i]->name());
    const Var sum = b.var(shared.sums[i]);
    const Var gradient = b.var(algorithm->find("grad/" + shared.weights[i]->name()));
    bind_state(entry, shared.sums[i], where(accumulating, sum, 0.0) + gradient);
  }
  b.set_name("next/" + shared.count->name());
  bind_state(entry, shared.count, where(accumulating, b.var(shared.count), 0.0) + 1.0);
  bind_state(entry, seen, b.var(shared.step));
}

void add_totals(EntryPoint* entry, const Shared& shared, bool sum_over_batch) {
  Builder b(entry->algorithm.get());
  for (size_t i = 0; i < shared.weights.size(); ++i) {
    const Var sum = b.var(shared.sums[i]);
    const std::string name = "grad/" + shared.weights[i]->name();
    if (sum_over_batch) {
      b.set_name(name);
      b.op("Identity", {sum});
    } else {
      b.set_name("micro_batches");
      const Var count = cast_like(b.var(shared.count), sum);
      b.set_name(name);
      sum / count;
    }
  }
}

bool run(Model& model, const BuildOptions& options) {
  EntryPoint* step = model.find_entry_point("step");
  if (!step) fail("[Accumulate] the model has no entry point 'step'; run the pass 'gradients' first");
  step->algorithm->shell().set_name("accumulate");
  const Shared shared = add_shared_state(&model, *step);
  add_sums(step, shared);
  add_totals(&model.add_entry_point("apply"), shared, is_sum(parse_loss(options.loss)));  // `step` is no longer valid
  return true;
}

}  // namespace

Pass accumulate(const BuildOptions& options) {
  return {"accumulate", [options](Model& model) { return run(model, options); }};
}

}  // namespace onnx_train
