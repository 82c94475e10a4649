#include "runtime/plan/fitting_plan.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr int kMaxPlans = 16;
constexpr size_t kMaxLines = 10;

// In the units that --memory takes: small sizes, too, have a number that is not 0.
std::string megabytes(size_t bytes) {
  if (bytes < 1000) return concat(bytes, " B");
  const bool kilo = bytes < 100'000;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", static_cast<double>(bytes) / (kilo ? 1e3 : 1e6), kilo ? "KB" : "MB");
  return text;
}

// Returns the peak step: the node at which most bytes of the arena are in use.
int fullest_node(const std::vector<LiveRange>& ranges) {
  int end = 0;
  for (const LiveRange& range : ranges) end = std::max(end, range.last + 1);
  std::vector<int64_t> change(static_cast<size_t>(end) + 1);
  for (const LiveRange& range : ranges) {
    change[static_cast<size_t>(range.first)] += static_cast<int64_t>(range.bytes);
    change[static_cast<size_t>(range.last) + 1] -= static_cast<int64_t>(range.bytes);
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  return static_cast<int>(std::max_element(change.begin(), change.end()) - change.begin());
}

}  // namespace

std::string largest_buffers(const Plan& plan) {
  const std::vector<LiveRange>& ranges = plan.live_ranges();
  const int node = fullest_node(ranges);
  std::vector<size_t> alive;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].first <= node && node <= ranges[i].last && ranges[i].bytes > 0) alive.push_back(i);
  }
  std::stable_sort(alive.begin(), alive.end(), [&](size_t a, size_t b) { return ranges[a].bytes > ranges[b].bytes; });
  std::string text = concat("the largest of ", alive.size(), " buffers in use at node ", node, ":");
  for (size_t i = 0; i < std::min(alive.size(), kMaxLines); ++i) {
    char line[32];
    std::snprintf(line, sizeof line, "\n  %12s  ", megabytes(ranges[alive[i]].bytes).c_str());
    text += line + plan.range_names()[alive[i]];
  }
  return text;
}

std::unique_ptr<Plan> plan_within(size_t budget, const std::function<std::unique_ptr<Plan>(size_t values)>& make) {
  if (budget == 0) return make(0);
  size_t values = SIZE_MAX;
  std::unique_ptr<Plan> plan = make(values);
  for (int plans = 1; plan->arena_bytes() > budget; ++plans) {
    const size_t alive = plan->recomputation().after;
    if (plans == kMaxPlans || alive == 0 || alive > values) {
      fail_as(ErrorCode::kMemoryBudget, "[Plan] gradients and activations need ", megabytes(plan->arena_bytes()),
              alive == 0 ? "" : " at the least", "; the budget is ", megabytes(budget),
              ". Take a smaller batch, or a larger budget",
              alive == 0 ? " (nothing was recomputed: that lowering pass was left out)" : "", "; ",
              largest_buffers(*plan));
    }
    const double ratio = static_cast<double>(budget) / static_cast<double>(plan->arena_bytes());
    values = static_cast<size_t>(static_cast<double>(alive) * ratio);
    plan.reset();
    plan = make(values);
  }
  return plan;
}

void check_available(const Plan& plan, size_t needed, size_t available) {
  if (needed <= available) return;
  fail_as(ErrorCode::kOutOfMemory, "[Plan] to run takes ", megabytes(needed), ", for gradients and activations ",
          megabytes(plan.arena_bytes()), " of it, and this machine has ", megabytes(available),
          " available. Take a smaller batch, or --memory to recompute activations; ", largest_buffers(plan));
}

}  // namespace onnx_train
