#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes.h"
#include "runtime/data/loading/source.h"
#include "runtime/models/example_inputs.h"
#include "runtime/session/session.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"
#include "tools/difference_quotients.h"
#include "tools/opt/pass_numbers.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

// What rounding makes of difference quotients: 2e-16 of the loss by a step of 1e-6 or so.
constexpr double kLeastTolerance = 1e-9;

struct VerifyArguments {
  std::string model, inputs, entry;
  bool passes = false;
  std::vector<std::string> sizes;
  int64_t batch = 4;
  uint64_t seed = 0;
  double tolerance = 1e-5, step = 1e-6;
  SessionSettings runtime;
};

// The training step as a plain model of the loss and, where asked for, the gradients. Weights are inputs with a
// default, other state is constant, so that dropout drops the same elements each time.
Model loss_model(const Model& training, const EntryName& entry, bool with_gradients) {
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

enum class WeightVerdict { kAgrees, kNotSmooth, kWrong };

struct Check {
  std::string weight;
  double analytic = 0, numeric = 0, error = 0;
  WeightVerdict verdict = WeightVerdict::kAgrees;
};

// Weights, and the gradients there.
struct Point {
  TensorMap weights, gradients;
};

// A random direction of length one.
Tensor random_direction(const Shape& shape, std::mt19937_64* random) {
  std::normal_distribution<double> normal;
  Tensor direction(DType::kDouble, shape);
  double length = 0;
  for (int64_t i = 0; i < direction.size(); ++i) {
    direction.set(i, normal(*random));
    length += direction.at(i) * direction.at(i);
  }
  for (int64_t i = 0; i < direction.size(); ++i) direction.set(i, direction.at(i) / std::sqrt(length));
  return direction;
}

double length_of(const Tensor& x) {
  double squares = 0;
  for (int64_t i = 0; i < x.size(); ++i) squares += x.at(i) * x.at(i);
  return std::sqrt(squares);
}

// Holds gradients against differences at the training model's weights and, where these differ, at points nearby.
class Verifier {
 public:
  Verifier(const Model& training, const EntryPoint& entry, TensorMap inputs, const VerifyArguments& arguments)
      : arguments_(arguments),
        loss_(entry.output(roles::kLoss)->name()),
        gradients_(loss_model(training, entry.name(), true), options_of_session(arguments.runtime)),
        losses_(loss_model(training, entry.name(), false), options_of_session(arguments.runtime)),
        inputs_(std::move(inputs)),
        random_(arguments.seed) {
    TensorMap start;
    for (const WeightGradient& g : entry.gradients) start[g.weight->name()] = contents_of(*g.weight);
    points_.push_back({start, gradients_at(start)});
  }

  // A wrong gradient differs clearly from the quotients wherever it is looked at. What differs at the model's weights
  // alone, in a direction or two, is a kink there: zeros under a ReLU, equal numbers under a Max.
  Check check(const WeightGradient& weight) {
    const auto [first, analytic] = look(points_[0], weight);
    Check check{weight.weight->name(), analytic, first.numeric, first.error, WeightVerdict::kAgrees};
    if (first.agrees) return check;
    const SlopeCheck again = look(points_[0], weight).first;
    int clear = (first.contrast > kClear) + (again.contrast > kClear), clear_nearby = 0;
    for (size_t i = 1; i <= kNearby; ++i) {
      const SlopeCheck there = look(nearby(i), weight).first;
      clear_nearby += std::isfinite(there.numeric) && there.contrast > kClear;
    }
    const bool certain = first.contrast > kCertain && again.contrast > kCertain;
    const bool wrong = certain || (clear_nearby > 0 && clear + clear_nearby > 1);
    check.verdict = wrong ? WeightVerdict::kWrong : WeightVerdict::kNotSmooth;
    return check;
  }

 private:
  // In units of what quotients differ by among themselves. By chance, quotients next to a kink agree so well in one
  // direction of 20, and of 1000.
  static constexpr double kClear = 20, kCertain = 1000;
  static constexpr size_t kNearby = 2;

  TensorMap gradients_at(const TensorMap& weights) {
    TensorMap inputs = inputs_, found;
    for (const auto& [name, value] : weights) inputs[name] = value;
    for (const auto& [name, tensor] : gradients_.run(Entry::kPredict, inputs)) found[name] = tensor.clone();
    return found;
  }

  // The i-th point at which every weight is moved by a thousandth of its size.
  const Point& nearby(size_t i) {
    while (points_.size() <= i) {
      TensorMap moved;
      for (const auto& [name, value] : points_[0].weights) {
        const double size = length_of(value) > 0 ? length_of(value) : std::sqrt(static_cast<double>(value.size()));
        Tensor there = random_direction(value.shape(), &random_);
        for (int64_t k = 0; k < there.size(); ++k) there.set(k, value.at(k) + 1e-3 * size * there.at(k));
        moved[name] = there;
      }
      TensorMap gradients = gradients_at(moved);
      points_.push_back({std::move(moved), std::move(gradients)});
    }
    return points_[i];
  }

  // The gradient along a random direction, and what the differences say to it.
  std::pair<SlopeCheck, double> look(const Point& point, const WeightGradient& weight) {
    const Tensor& value = point.weights.at(weight.weight->name());
    const Tensor& gradient = point.gradients.at(weight.gradient->name());
    const Tensor direction = random_direction(value.shape(), &random_);
    double analytic = 0;
    for (int64_t i = 0; i < value.size(); ++i) analytic += direction.at(i) * gradient.at(i);
    TensorMap inputs = inputs_;
    for (const auto& [name, tensor] : point.weights) inputs[name] = tensor;
    const auto loss_at = [&](double distance) {
      Tensor there = value.clone();
      for (int64_t i = 0; i < there.size(); ++i) there.set(i, value.at(i) + distance * direction.at(i));
      inputs[weight.weight->name()] = there;
      return losses_.run(Entry::kPredict, inputs).at(loss_).at(0);
    };
    const double step = arguments_.step * std::max(1.0, length_of(value));
    const double usual = length_of(gradient) / std::sqrt(static_cast<double>(std::max<int64_t>(value.size(), 1)));
    return {check_slope(loss_at, analytic, usual, step, arguments_.tolerance), analytic};
  }

  const VerifyArguments& arguments_;
  const std::string loss_;
  Session gradients_, losses_;
  TensorMap inputs_;
  std::vector<Point> points_;  // the first holds the model's weights
  std::mt19937_64 random_;
};

const char* remark(const Check& check, double tolerance) {
  if (check.verdict == WeightVerdict::kWrong) return std::isfinite(check.analytic) ? "WRONG" : "WRONG: not finite";
  if (check.verdict == WeightVerdict::kNotSmooth) return "not smooth here";
  return check.error > tolerance ? "zero but for rounding" : "";
}

int report(std::vector<Check> checks, double tolerance) {
  std::sort(checks.begin(), checks.end(), [](const Check& a, const Check& b) {
    return a.verdict != b.verdict ? a.verdict > b.verdict : a.error > b.error;
  });
  const auto count = [&](WeightVerdict verdict) {
    return std::count_if(checks.begin(), checks.end(), [&](const Check& c) { return c.verdict == verdict; });
  };
  TextTable table("wrrrw");
  table.add({"parameter", "gradient", "difference", "error"});
  for (const Check& c : checks) {
    table.add(
        {c.weight, format_exact(c.analytic), format_exact(c.numeric), format_number(c.error), remark(c, tolerance)});
  }
  std::printf("%s%td parameters agree within %.1e\n", table.text(0, table_width()).c_str(),
              count(WeightVerdict::kAgrees), tolerance);
  const auto kinks = count(WeightVerdict::kNotSmooth), wrong = count(WeightVerdict::kWrong);
  if (kinks > 0) {
    const std::string text =
        concat(kinks, " not smooth here: the loss has a kink at these weights or next to them (ReLU, ",
               "Max, a pool), which differences cannot check");
    std::printf("%s\n", wrap(text, text_width(), 0, 2).c_str());
  }
  if (wrong == 0) return 0;
  fail(wrong, " of ", checks.size(), " gradients differ from the difference quotient by more than ", tolerance);
}

// One batch for an entry point, without the inputs that have a default.
TensorMap batch_for(const VerifyArguments& arguments, const Model& training, const EntryName& entry) {
  const std::vector<InputSpec> specs = entry_inputs(training, entry);
  TensorMap inputs;
  if (arguments.inputs.empty()) {
    inputs = random_inputs(specs, example_shapes(specs, arguments.batch, arguments.sizes), arguments.seed);
  } else {
    const Dataset data = load_dataset(arguments.inputs, specs, DataRole::kTrain, Preprocess(training));
    const int64_t count = data.fixed_batch() > 0 ? data.fixed_batch() : std::min(arguments.batch, data.num_samples());
    const auto order = sample_order(data.num_samples(), arguments.seed, 0, true);
    if (count > data.num_samples()) fail(arguments.inputs, " has fewer samples than the model's batch of ", count);
    data.gather(order.data(), count, &inputs);
  }
  for (const InputSpec& spec : specs) {
    if (spec.has_default) inputs.erase(spec.name);
  }
  return inputs;
}

int verify_gradients(const VerifyArguments& arguments) {
  Model training = in_precision(load_training_model(arguments.model), "float64");
  const EntryPoint* point = training.training_entry_point();
  if (!point) {
    fail(arguments.model, " has neither an entry point '", name_of(Entry::kStep), "' nor '",
         name_of(Entry::kAccumulate), "'");
  }
  if (point->gradients.empty()) fail(arguments.model, " does not say which of its values are gradients");
  if (!point->output(roles::kLoss)) fail(arguments.model, ": the entry point '", point->name(), "' has no loss");
  Verifier verifier(training, *point, batch_for(arguments, training, point->name()), arguments);
  std::vector<Check> checks;
  for (const WeightGradient& g : point->gradients) checks.push_back(verifier.check(g));
  return report(std::move(checks), arguments.tolerance);
}

std::string remark(const PassNumbers& row) {
  switch (row.verdict) {
    case PassNumbers::Verdict::kUnchanged: return "changes nothing";
    case PassNumbers::Verdict::kAgrees: return "";
    case PassNumbers::Verdict::kRounds: return "rounding";
    case PassNumbers::Verdict::kOff: return "WRONG";
    case PassNumbers::Verdict::kFails: return "does not run: " + row.fault;
  }
  return "";
}

int report(const std::vector<PassNumbers>& rows, const EntryName& entry) {
  using Result = PassNumbers::Verdict;
  TextTable table("lrrww");
  table.add({"pass", "difference", "bound", "output", ""});
  const PassNumbers* first = nullptr;
  size_t compared = 0;
  for (const PassNumbers& row : rows) {
    const bool has_run = row.verdict != Result::kUnchanged && row.verdict != Result::kFails;
    const auto number = [&](double value) { return has_run ? format_number(value) : "-"; };
    table.add({row.pass, number(row.difference), number(row.bound), row.difference > 0 ? row.output : "", remark(row)});
    compared += has_run;
    if (!first && (row.verdict == Result::kOff || row.verdict == Result::kFails)) first = &row;
  }
  print(table.text(0, table_width()));
  if (!first) {
    print(concat(compared, compared == 1 ? " pass leaves" : " passes leave", " the numbers of '", entry,
                 "' within the bounds\n"));
    return 0;
  }
  if (first->verdict == Result::kFails)
    fail("'", entry, "' runs before the pass '", first->pass, "', and not after it: ", first->fault);
  fail("the numbers of '", entry, "' are others after the pass '", first->pass, "': output '", first->output,
       "' differs by ", format_number(first->difference), " of its norm, and the bound is ",
       format_number(first->bound));
}

int verify_passes(const VerifyArguments& arguments) {
  Model training = load_any_model(arguments.model);
  const EntryPoint* trained = training.training_entry_point();
  EntryName entry = trained ? trained->name() : Entry::kPredict;
  if (!arguments.entry.empty()) entry = arguments.entry;
  TensorMap inputs = batch_for(arguments, training, entry);
  // With a rate of 1 the new weights show the digits of the updates.
  const EntryPoint* point = training.find_entry_point(entry);
  if (const Value* rate = point ? point->input(roles::kLearningRate) : nullptr)
    inputs[rate->name()] = Tensor::full(rate->dtype(), {}, 1);
  return report(verify_lowering(std::move(training), entry, inputs, options_of_session(arguments.runtime)), entry);
}

int run(const VerifyArguments& arguments) {
  if (arguments.passes) return verify_passes(arguments);
  if (!arguments.entry.empty()) throw UsageError("--entry goes with --passes");
  return verify_gradients(arguments);
}

}  // namespace

Subcommand verify_command() {
  auto a = std::make_shared<VerifyArguments>();
  return {"verify", "Hold every gradient of a training model against difference quotients of its own loss, in float64",
          "  onnx-train verify train.onnx\n"
          "  onnx-train verify train.onnx --inputs train.npz --batch 16 --tolerance 1e-6\n"
          "  onnx-train verify train.onnx --dim sequence=64\n"
          "  onnx-train verify train.onnx --passes",
          with_session_options(
              {{"MODEL", &a->model, "a training model or a checkpoint", "FILE", true},
               {"--passes", &a->passes,
                "instead: run the model after each lowering pass, and name the first that changes the numbers by more "
                "than it may (docs/lowering.md)"},
               {"--entry",
                &a->entry,
                "with --passes: the entry point [step, accumulate or predict]",
                "NAME",
                false,
                {},
                entry_names},
               {"--inputs", &a->inputs, "data to take a batch from [random floats, zeros and ones]", "PATH"},
               {"--batch", {&a->batch, kCount}, "samples in the batch [4]", "N"},
               {"--dim",
                {&a->sizes, check_size},
                "NAME=N: the size of a symbolic dimension, where no data says it [8]",
                "NAME=N"},
               {"--tolerance",
                {&a->tolerance, {kLeastTolerance, false, 1}},
                "relative error from which on a gradient is wrong; differences in float64 tell none below 1e-9 [1e-5]",
                "X"},
               {"--step",
                {&a->step, kPositive},
                "length of the first step in the weights, times their norm where that is above 1; where differences "
                "disagree "
                "with it, steps from a hundredth to a hundred times as long tell a kink from a wrong gradient [1e-6]",
                "X"},
               {"--seed", &a->seed, "of the directions and inputs [0]", "N"}},
              &a->runtime),
          [a] { return run(*a); }};
}

}  // namespace onnx_train
