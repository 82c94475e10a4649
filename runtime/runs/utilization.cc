#include "runtime/runs/utilization.h"

#include <set>

namespace onnx_train {

Utilization::Utilization(const Session& session, std::chrono::duration<double> after)
    : session_(session), begins_(Clock::now() + std::chrono::duration_cast<Clock::duration>(after)) {}

std::optional<double> Utilization::of(const StepReport& report) {
  if (report.operations.empty() || report.milliseconds <= 0 || Clock::now() < begins_) return std::nullopt;
  if (session_.device().uses_host_memory() && session_.topology().ranks() > 1) return std::nullopt;
  if (!rates_) {
    std::set<DType> types;
    for (const auto& [dtype, count] : report.operations) types.insert(dtype);
    rates_ = measure_products(session_, types);
  }
  const double least = rates_->arithmetic_milliseconds({.flops = report.operations});
  return least > 0 ? std::optional(least / report.milliseconds) : std::nullopt;
}

}  // namespace onnx_train
