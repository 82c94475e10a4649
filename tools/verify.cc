#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes/passes.h"
#include "runtime/checkpoint.h"
#include "runtime/session.h"
#include "tools/data/source.h"
#include "tools/models.h"
#include "tools/report/format.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct VerifyArguments {
  std::string model, inputs;
  std::vector<std::string> sizes;
  int64_t batch = 4;
  uint64_t seed = 0;
  double tolerance = 1e-5, step = 1e-6;
  RuntimeOptions runtime;
};

// The training step as a plain model of the loss and, where asked for, the gradients. Weights are inputs with a
// default, other state is constant, so that dropout drops the same elements each time.
Model loss_model(const Model& training, const std::string& entry, bool with_gradients) {
  Model model = clone(training);
  EntryPoint& point = *model.find_entry_point(entry);
  for (EntryPoint& any : model.entry_points) {  // what nothing updates is no state
    any.update_bindings.clear();
    any.initialization_bindings.clear();
  }
  std::vector<Value*> outputs = {point.output(roles::kLoss)};
  for (const WeightGradient& g : point.gradients) {
    if (with_gradients) outputs.push_back(g.gradient);
  }
  point.algorithm->set_outputs(outputs);
  Model flat = flatten(model, entry);
  for (const WeightGradient& g : point.gradients) {
    Value* value = flat.graph->find(g.weight->name());
    if (value && !flat.graph->is_input(value)) flat.graph->add_input(value->name(), value->type());
  }
  return flat;
}

// Batches that need no file: normal floats, and zeros and ones for everything counted, which any classifier and any
// vocabulary has.
TensorMap random_inputs(const std::vector<InputSpec>& specs, const std::map<std::string, Shape>& shapes,
                        uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  TensorMap inputs;
  for (const InputSpec& spec : specs) {
    const auto shape = shapes.find(spec.name);
    if (shape == shapes.end()) continue;
    Tensor tensor(spec.type.dtype, shape->second);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      tensor.set(i, is_float(spec.type.dtype) ? normal(random) : static_cast<double>(random() & 1));
    }
    inputs[spec.name] = tensor;
  }
  return inputs;
}

struct Check {
  std::string weight;
  double analytic, numeric, error;
};

// (loss(w + h d) - loss(w - h d)) / 2h against the gradient times d, for a random direction d of length one.
Check check_weight(Session* session, const std::string& loss, const TensorMap& inputs, const std::string& weight,
                   const Tensor& value, const Tensor& gradient, const VerifyArguments& arguments,
                   std::mt19937_64* random) {
  std::normal_distribution<double> normal;
  std::vector<double> direction(static_cast<size_t>(value.size()));
  double length = 0, size = 0, analytic = 0;
  for (double& d : direction) {
    d = normal(*random);
    length += d * d;
  }
  for (size_t i = 0; i < direction.size(); ++i) {
    direction[i] /= std::sqrt(length);
    const auto at = static_cast<int64_t>(i);
    analytic += direction[i] * gradient.at(at);
    size += value.at(at) * value.at(at);
  }
  const double h = arguments.step * std::max(1.0, std::sqrt(size));
  TensorMap moved = inputs;
  const auto loss_at = [&](double distance) {
    Tensor there = value.clone();
    for (size_t i = 0; i < direction.size(); ++i) {
      there.data<double>()[i] += distance * direction[i];
    }
    moved[weight] = there;
    return session->run("predict", moved).at(loss).at(0);
  };
  const double up = loss_at(h), down = loss_at(-h);
  const double numeric = (up - down) / (2 * h);
  // What rounding of the loss alone makes of the quotient bounds what can be told apart.
  const double noise = 1e-16 * (std::abs(up) + std::abs(down)) / h;
  const double scale = std::max({std::abs(analytic), std::abs(numeric), noise / arguments.tolerance, 1e-12});
  const double error = std::abs(analytic - numeric) / scale;
  return {weight, analytic, numeric, std::isfinite(error) ? error : INFINITY};
}

int report(std::vector<Check> checks, double tolerance) {
  std::sort(checks.begin(), checks.end(), [](const Check& a, const Check& b) { return a.error > b.error; });
  const auto wrong =
      std::count_if(checks.begin(), checks.end(), [&](const Check& c) { return !(c.error <= tolerance); });
  Table table("lrrrl");
  table.add({"parameter", "gradient", "difference", "error"});
  for (const Check& c : checks) {
    char numbers[3][32];
    std::snprintf(numbers[0], sizeof numbers[0], "%.9g", c.analytic);
    std::snprintf(numbers[1], sizeof numbers[1], "%.9g", c.numeric);
    std::snprintf(numbers[2], sizeof numbers[2], "%.1e", c.error);
    table.add({c.weight, numbers[0], numbers[1], numbers[2], c.error <= tolerance ? "" : "WRONG"});
  }
  std::printf("%s", table.text(0).c_str());
  if (wrong == 0) {
    std::printf("%zu parameters agree within %.1e\n", checks.size(), tolerance);
    return 0;
  }
  fail(wrong, " of ", checks.size(), " gradients differ from the difference quotient by more than ", tolerance);
}

int run(const VerifyArguments& arguments) {
  Model training = in_precision(load_training_model(arguments.model), "float64");
  const std::string entry = training.find_entry_point("step") ? "step" : "accumulate";
  const EntryPoint* point = training.find_entry_point(entry);
  if (!point) fail(arguments.model, " has neither an entry point 'step' nor 'accumulate'");
  if (point->gradients.empty()) fail(arguments.model, " does not say which of its values are gradients");
  const Value* loss = point->output(roles::kLoss);
  if (!loss) fail(arguments.model, ": the entry point '", entry, "' has no loss");
  const std::vector<InputSpec> specs = entry_inputs(training, entry);
  TensorMap inputs;
  if (arguments.inputs.empty()) {
    inputs = random_inputs(specs, example_shapes(specs, arguments.batch, arguments.sizes), arguments.seed);
  } else {
    const Dataset data = load_dataset(arguments.inputs, specs);
    const int64_t count = data.fixed_batch() > 0 ? data.fixed_batch() : std::min(arguments.batch, data.num_samples());
    const auto order = sample_order(data.num_samples(), arguments.seed, 0, true);
    if (count > data.num_samples()) fail(arguments.inputs, " has fewer samples than the model's batch of ", count);
    data.gather(order.data(), count, &inputs);
  }
  for (const InputSpec& spec : specs) {
    if (spec.has_default) inputs.erase(spec.name);
  }
  const SessionOptions options = session_options(arguments.runtime);
  Session gradients(loss_model(training, entry, true), options);
  Session losses(loss_model(training, entry, false), options);
  TensorMap found;
  for (const auto& [name, tensor] : gradients.run("predict", inputs)) found[name] = tensor.clone();
  std::mt19937_64 random(arguments.seed);
  std::vector<Check> checks;
  for (const WeightGradient& g : point->gradients) {
    const Tensor value = from_proto(*g.weight->initializer());
    checks.push_back(check_weight(&losses, loss->name(), inputs, g.weight->name(), value, found.at(g.gradient->name()),
                                  arguments, &random));
  }
  return report(std::move(checks), arguments.tolerance);
}

}  // namespace

Subcommand verify_command() {
  auto a = std::make_shared<VerifyArguments>();
  return {
      "verify", "Hold every gradient of a training model against difference quotients of its own loss, in float64",
      "  onnx-train verify train.onnx\n"
      "  onnx-train verify train.onnx --inputs train.npz --batch 16 --tolerance 1e-6\n"
      "  onnx-train verify train.onnx --dim sequence=64",
      with_runtime_options(
          {{"MODEL", &a->model, "a training model or a checkpoint", "FILE", true},
           {"--inputs", &a->inputs, "data to take a batch from [random floats, zeros and ones]", "PATH"},
           {"--batch", {&a->batch, kCount}, "samples in the batch [4]", "N"},
           {"--dim",
            {&a->sizes, check_size},
            "NAME=N: the size of a symbolic dimension, where no data says it [8]",
            "NAME=N"},
           {"--tolerance", {&a->tolerance, kPositive}, "relative error from which on a gradient is wrong [1e-5]", "X"},
           {"--step",
            {&a->step, kPositive},
            "length of the step in the weights, times their norm where that is above 1 [1e-6]",
            "X"},
           {"--seed", &a->seed, "of the directions and inputs [0]", "N"}},
          &a->runtime),
      [a] { return run(*a); }};
}

}  // namespace onnx_train
