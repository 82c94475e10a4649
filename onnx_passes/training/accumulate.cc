#include "onnx_passes/training/accumulate.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/precision/loss_scaling.h"
#include "onnx_passes/training/optimizer.h"

namespace onnx_train {
namespace {

// Gradients that are summed together: of the loss, or of one part of it.
struct GradientSums {
  std::vector<Value*> gradients;  // by weight; null where there is none
  Value* count;                   // of a batch, in `accumulate`; null for a loss that sums
  std::vector<Value*> sums;       // states, as `gradients`
  Value* counted = nullptr;       // the state with the sum of counts
};

Value* count_of_part(const EntryPoint& entry, const std::string& number) {
  for (Value* output : entry.algorithm->outputs()) {
    if (output->has_role(roles::kLossPartCount) && output->role()->of == number) return output;
  }
  return nullptr;
}

// 1 for a batch in which anything counts, else 0; null for a loss that sums.
Value* one_per_batch(EntryPoint* entry) {
  Builder b(entry->algorithm.get());
  b.set_name("batches/part");
  Var counts_any;
  for (Value* output : entry->algorithm->outputs()) {
    if (!output->has_role(roles::kLossCount) && !output->has_role(roles::kLossPartCount)) continue;
    const Var any = logical_not(equal(b.var(output), b.scalar(output->dtype(), 0)));
    counts_any = counts_any ? logical_or(counts_any, any) : any;
  }
  return counts_any ? cast(counts_any, DType::kFloat).value() : nullptr;
}

std::vector<GradientSums> parts_of(EntryPoint* entry, const BuildOptions& options) {
  std::vector<GradientSums> parts;
  for (size_t i = 0; i < entry->part_gradients.size(); ++i) {
    parts.push_back({entry->part_gradients[i], count_of_part(*entry, std::to_string(i)), {}});
  }
  if (!parts.empty()) return parts;
  GradientSums all{{}, options.mean_of_batches ? one_per_batch(entry) : entry->output(roles::kLossCount), {}};
  for (const WeightGradient& g : entry->gradients) all.gradients.push_back(g.gradient);
  return {all};
}

// States that both halves read. Those of the first part have no number.
void add_sum_states(Model* model, const std::vector<WeightGradient>& gradients, std::vector<GradientSums>* parts) {
  Graph& graph = *model->graph;
  for (size_t p = 0; p < parts->size(); ++p) {
    GradientSums& part = (*parts)[p];
    const std::string number = p == 0 ? "" : concat("_", p);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const std::string slot = roles::kGradientSum + number;
      const Value* weight = gradients[i].weight;
      const Tensor zeros(weight->dtype(), weight->type().shape());
      part.sums.push_back(part.gradients[i] ? add_slot(*model, &graph, weight, slot, zeros) : nullptr);
    }
    if (!part.count) continue;
    const Tensor zero = Tensor::full(part.count->dtype(), {}, 0);
    part.counted =
        add_state(*model, &graph, "state/accumulated" + number, zero, {roles::kAccumulated, p == 0 ? "" : concat(p)});
  }
}

void bind_accumulating(EntryPoint* entry, Value* accumulating, bool value) {
  Builder b(entry->algorithm.get());
  bind_state(entry, accumulating, b.constant(Tensor::scalar(value)));
}

// sum' = count * grad + (sum, or 0 if an update has used it already), and so for the count
void add_sums(EntryPoint* entry, Value* accumulating, const std::vector<GradientSums>& parts) {
  Builder b(entry->algorithm.get());
  const auto add = [&](Value* state, Var x) {
    b.set_name("next/" + state->name());
    bind_state(entry, state, where(b.var(accumulating), b.var(state), 0.0) + x);
  };
  for (const GradientSums& part : parts) {
    for (size_t i = 0; i < part.sums.size(); ++i) {
      if (!part.sums[i]) continue;
      b.set_name("next/" + part.sums[i]->name() + "/part");
      const Var gradient = b.var(part.gradients[i]);
      add(part.sums[i], part.count ? gradient * cast_like(b.var(part.count), gradient) : gradient);
    }
    if (part.count) add(part.counted, b.var(part.count));
  }
  bind_accumulating(entry, accumulating, true);
}

// The gradient of the loss over all batches: Σ sum / count over its parts.
void add_means(EntryPoint* entry, const std::vector<WeightGradient>& gradients,
               const std::vector<GradientSums>& parts) {
  Builder b(entry->algorithm.get());
  std::vector<Var> divisors;
  for (const GradientSums& part : parts) {
    divisors.emplace_back();
    if (!part.counted) continue;
    b.set_name("counted");
    const Var counted = b.var(part.counted), zero = b.scalar(counted.dtype(), 0), one = b.scalar(counted.dtype(), 1);
    divisors.back() = where(equal(counted, zero), one, counted);
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    b.set_name("grad/" + gradients[i].weight->name());
    Var mean;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (!parts[p].sums[i]) continue;
      const Var sum = b.var(parts[p].sums[i]);
      const Var part = divisors[p] ? sum / cast_like(divisors[p], sum) : b.op("Identity", {sum});
      mean = mean ? mean + part : part;
    }
    entry->gradients.push_back({gradients[i].weight, mean.value()});
  }
}

bool split_step(Model& model, const BuildOptions& options) {
  EntryPoint* step = model.find_entry_point(Entry::kStep);
  if (!step) fail("[Accumulate] the model has no entry point 'step'; run the pass 'gradients' first");
  step->algorithm->shell().set_name(name_of(Entry::kAccumulate));
  std::vector<GradientSums> parts = parts_of(step, options);
  const std::vector<WeightGradient> gradients = step->gradients;
  step->part_gradients.clear();
  add_sum_states(&model, gradients, &parts);
  Value* accumulating =
      add_state(model, model.graph.get(), "state/accumulating", Tensor::scalar(false), {roles::kAccumulating, ""});
  add_sums(step, accumulating, parts);
  Builder b(step->algorithm.get());
  if (const auto scale = loss_scale(model, step, &b, options)) add_result(step, roles::kLossScale, *scale);
  const bool sums = std::none_of(parts.begin(), parts.end(), [](const GradientSums& part) { return part.count; });
  EntryPoint* apply = &model.add_entry_point(Entry::kApply);  // this invalidates `step`
  add_means(apply, gradients, parts);
  bind_accumulating(apply, accumulating, false);
  model.set_metadata("onnx_train.accumulate", sums                      ? "the sum of its batches"
                                              : options.mean_of_batches ? "the mean of its batches' means"
                                                                        : "the mean over all that its batches count");
  return true;
}

}  // namespace

Pass accumulate(const BuildOptions& options) {
  return {"accumulate", [options](Model& model) { return split_step(model, options); }};
}

}  // namespace onnx_train
