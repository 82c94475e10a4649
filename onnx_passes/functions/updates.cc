// Stochastic gradient descent, averages of weights, and the norm of all gradients.
#include "onnx_passes/functions/update_body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// b' = momentum·b + d·g      d: 1 in the first step (b is 0), then 1 - dampening
// w' = w - lr·(g + momentum·b' with nesterov, else b')
FunctionText sgd(const FunctionCall& call) {
  UpdateBody f("Sgd", {"momentum_buffer"}, call);
  const Term g = f.gradient(), momentum = f.attribute("momentum");
  Term direction = g;
  if (f.has("momentum_buffer")) {
    const Term share = where(equal(f.input("step"), 1), f.number(1), 1 - f.attribute("dampening"));
    const Term buffer = f.next("momentum_buffer", f.slot("momentum_buffer") * momentum + g * share);
    direction = f.flag("nesterov") ? g + buffer * momentum : buffer;
  }
  f.next("w", f.weight() - direction * cast_like(f.input("learning_rate"), f.weight()));
  return f.text();
}

// a' = w in the first step, then a + (1-d)(w - a)      as torch.optim.swa_utils.get_ema_multi_avg_fn
Term moving_average(Body& f, const Term& average, const Term& w, const Term& step) {
  return where(equal(step, 1), w, average + (w - average) * (1 - f.attribute("decay")));
}

// a' = w before step start; a + (w - a) / (k + 1) where k = (step - start) / every is whole; else a: the mean of the
// weights after the steps start, start + every, ..        as torch.optim.swa_utils.AveragedModel, which is updated at
// these steps
Term mean_of_weights(Body& f, const Term& average, const Term& w, const Term& step) {
  const Term since = step - f.attribute("start"), period = f.attribute("every");
  const Term is_due = equal(f.op("Mod", {since, period}), 0), count = max(since / period + 1, 1);
  const Term moved = average + (w - average) / cast_like(count, w);
  return where(since < 0, w, where(is_due, moved, average));
}

// norm = √(Σᵢ Σ gᵢ²), in float32, or in float64 where a gradient is.
FunctionText global_norm(const FunctionCall& call) {
  DType dtype = DType::kFloat;
  std::string inputs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].dtype() == DType::kDouble) dtype = DType::kDouble;
    inputs += concat(i ? ", g" : "g", i);
  }
  Body f(concat("GlobalNorm (", inputs, ") => (norm)"), call);
  f.depends_on(concat(name(dtype), call.inputs.size()));
  Terms squares;
  for (const Term& g : f.inputs()) squares.push_back(reduce("ReduceSumSquare", cast(g, dtype), {}, /*keepdims=*/false));
  return f.text({sqrt(f.op("Sum", squares))});
}

}  // namespace

std::vector<FunctionRow> update_functions() {
  return {{"Sgd", sgd},
          {"GlobalNorm", global_norm},
          function("MovingAverage <decay> (average, w, int64 step) => (next_average)", moving_average),
          function("MeanOfWeights <start, every> (average, w, int64 step) => (next_average)", mean_of_weights)};
}

}  // namespace onnx_train
