#include "onnx_passes/passes/loss_scaling.h"

#include <charconv>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"

namespace onnx_train {
namespace {

constexpr float kFirst = 65536;
constexpr double kGrowth = 2, kBackoff = 0.5;
constexpr double kInterval = 2000;

float parse_fixed(const std::string& text) {
  float scale = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, scale);
  if (parsed.ec != std::errc() || parsed.ptr != end || !std::isfinite(scale) || scale <= 0)
    fail("--loss-scale takes 'dynamic' or a number above zero, not '", text, "'");
  return scale;
}

}  // namespace

std::optional<Var> loss_scale(const Model& model, EntryPoint* entry, Builder* b, const BuildOptions& options) {
  const bool by_precision = options.loss_scale.empty() && options.precision == Precision::kFloat16;
  const std::string scaling = by_precision ? "dynamic" : options.loss_scale;
  if (scaling.empty()) return std::nullopt;
  // Accumulators start new sums when the step count has advanced, which a skipped update does not do.
  if (options.accumulate) {
    fail(by_precision ? "--precision fp16 scales the loss, which --accumulate does not allow; take bf16"
                      : "--loss-scale and --accumulate do not go together; leave out one of them");
  }
  if (scaling != "dynamic") return b->scalar(DType::kFloat, static_cast<double>(parse_fixed(scaling)));
  if (Value* scale = find_state(*entry, roles::kLossScale)) return b->var(scale);
  return b->var(
      add_state(model, entry->algorithm.get(), "state/loss_scale", Tensor::scalar(kFirst), {roles::kLossScale, ""}));
}

Var is_finite(Var norm) {
  Builder& b = norm.builder();
  return logical_not(logical_or(b.op("IsNaN", {norm}), b.op("IsInf", {norm})));
}

void advance_loss_scale(const Model& model, EntryPoint* entry, Builder* b, Var finite) {
  Value* state = find_state(*entry, roles::kLossScale);
  if (!state) return;
  const Var scale = b->var(state);
  const Var good = b->var(add_state(model, entry->algorithm.get(), "state/loss_scale/good", Tensor::scalar<int64_t>(0),
                                    {roles::kGoodSteps, ""}));
  b->set_name("next/" + good.value()->name());
  const Var count = good + 1.0;
  const Var grows = count >= kInterval;
  bind_state(entry, good.value(), where(logical_and(finite, logical_not(grows)), count, 0.0));
  b->set_name("next/" + state->name());
  // The scale stays in the range of float32.
  const Var larger = min(scale * kGrowth, b->scalar(DType::kFloat, 0x1p127));
  const Var smaller = max(scale * kBackoff, b->scalar(DType::kFloat, 0x1p-126));
  bind_state(entry, scale.value(), where(finite, where(grows, larger, scale), smaller));
}

}  // namespace onnx_train
