#include "onnx_passes/precision/loss_scaling.h"

#include <cmath>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

constexpr double kGrowth = 2, kBackoff = 0.5;

// What --loss-scale says.
struct LossScale {
  bool dynamic = false;
  double first = 65536;    // or the fixed scale
  double interval = 2000;  // good updates before the scale grows
};

double positive(ExpressionReader* reader, double value, size_t column) {
  if (!std::isfinite(static_cast<float>(value)) || static_cast<float>(value) <= 0) {
    reader->fail_at(column, "a loss scale is a number above zero that float32 holds");
  }
  return value;
}

// `dynamic`, `dynamic(init_scale=1024, growth_interval=50)` or a number.
LossScale parse_loss_scale(const std::string& text) {
  ExpressionReader reader("--loss-scale", text);
  LossScale spec;
  const size_t begin = reader.column();
  if (reader.at_number()) {
    spec.first = positive(&reader, reader.number(), begin);
  } else if (!reader.at_word() || reader.word("a loss scale").text != "dynamic") {
    reader.fail_at(begin, "--loss-scale takes 'dynamic' or a number above zero");
  } else {
    spec.dynamic = true;
    const Arguments arguments = read_arguments(&reader);
    if (!arguments.names.empty()) reader.fail_at(arguments.names[0].column, "'dynamic' takes options only");
    for (const Option& option : arguments.options) {
      const double* value = std::get_if<double>(&option.value);
      if (option.key.text == "init_scale" && value) {
        spec.first = positive(&reader, *value, option.column);
      } else if (option.key.text == "growth_interval" && value && *value >= 1 && *value < 1e9) {
        spec.interval = std::floor(*value);
      } else {
        reader.fail_at(option.key.column, "'dynamic' has init_scale, above 0, and growth_interval, 1 or more");
      }
    }
  }
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  return spec;
}

// Empty: no scaling.
std::string scaling_of(const BuildOptions& options) {
  const bool by_precision = options.loss_scale.empty() && options.precision == Precision::kFloat16;
  return by_precision ? "dynamic" : options.loss_scale;
}

}  // namespace

std::optional<Var> loss_scale(const Model& model, EntryPoint* entry, Builder* b, const BuildOptions& options) {
  const std::string scaling = scaling_of(options);
  if (scaling.empty()) return std::nullopt;
  const LossScale spec = parse_loss_scale(scaling);
  if (!spec.dynamic) return b->scalar(DType::kFloat, spec.first);
  if (Value* scale = find_state(*entry, roles::kLossScale)) return b->var(scale);
  const Tensor first = Tensor::scalar(static_cast<float>(spec.first));
  // `accumulate` and `apply` share it.
  Graph* graph = options.accumulate ? model.graph.get() : entry->algorithm.get();
  return b->var(add_state(model, graph, "state/loss_scale", first, {roles::kLossScale, ""}));
}

void check_loss_scale(const std::string& text) {
  try {
    parse_loss_scale(text);
  } catch (const Error&) {
    fail("a number above zero, 'dynamic', or such as 'dynamic(init_scale=1024, growth_interval=50)'");
  }
}

Var is_finite(Var norm) {
  Builder& b = norm.builder();
  const Var is_nan = b.op("IsNaN", {norm});
  return logical_not(logical_or(is_nan, b.op("IsInf", {norm})));
}

void advance_loss_scale(const Model& model, EntryPoint* entry, Builder* b, Var finite, const BuildOptions& options) {
  Value* state = find_state(*entry, roles::kLossScale);
  if (!state) return;
  const Var scale = b->var(state);
  const Var good = b->var(add_state(model, entry->algorithm.get(), "state/loss_scale/good", Tensor::scalar<int64_t>(0),
                                    {roles::kGoodSteps, ""}));
  b->set_name("next/" + good.value()->name());
  const Var count = good + 1.0;
  const Var grows = count >= parse_loss_scale(scaling_of(options)).interval;
  bind_state(entry, good.value(), where(logical_and(finite, logical_not(grows)), count, 0.0));
  b->set_name("next/" + state->name());
  // The scale stays in the range of float32.
  const Var larger = min(scale * kGrowth, b->scalar(DType::kFloat, 0x1p127));
  const Var smaller = max(scale * kBackoff, b->scalar(DType::kFloat, 0x1p-126));
  bind_state(entry, scale.value(), where(finite, where(grows, larger, scale), smaller));
}

}  // namespace onnx_train
