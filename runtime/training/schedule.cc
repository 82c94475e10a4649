#include "runtime/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

double Schedule::rate(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const int64_t since = step - warmup;
  const double span = static_cast<double>(std::max<int64_t>(total - warmup, 1));
  const double progress = std::min(static_cast<double>(since) / span, 1.0);
  switch (curve) {
    case Curve::kConstant: return peak;
    case Curve::kLinear: return peak + (end - peak) * progress;
    case Curve::kCosine: return end + (peak - end) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case Curve::kStep:
      return step_every > 0 ? peak * std::pow(step_factor, static_cast<double>(since / step_every)) : peak;
  }
  fail("unknown curve of the learning rate");
}

namespace {

constexpr std::pair<Schedule::Curve, const char*> kCurves[] = {{Schedule::Curve::kConstant, "constant"},
                                                               {Schedule::Curve::kLinear, "linear"},
                                                               {Schedule::Curve::kCosine, "cosine"},
                                                               {Schedule::Curve::kStep, "step"}};

}  // namespace

std::string name_of(Schedule::Curve curve) {
  for (const auto& [known, name] : kCurves) {
    if (known == curve) return name;
  }
  fail("unknown curve of the learning rate");
}

Schedule::Curve parse_curve(const std::string& name) {
  for (const auto& [curve, known] : kCurves) {
    if (name == known) return curve;
  }
  fail("unknown schedule '", name, "'; take constant, linear, cosine or step");
}

}  // namespace onnx_train
