// What profiled runs of a plan have measured: tables for people, a trace for chrome://tracing.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/session/roofline.h"

namespace onnx_train {

// One node of a plan, its cost, and its time.
struct NodeProfile {
  const PlanStep* step;
  int index;  // in the plan
  NodeCost cost;
  double milliseconds;  // mean over the profiled runs; 0 without one
};

std::vector<NodeProfile> profile_of(const Plan& plan);
NodeCost total_cost(const std::vector<NodeProfile>& profile);

// Time by operator, then the `top` nodes that took longest, each with its share and its fraction of the roofline.
// `width` as in TextTable.
std::string profile_tables(const std::vector<NodeProfile>& profile, const Roofline& roofline, size_t top, size_t width);

// The last profiled run as JSON in the Trace Event Format: https://ui.perfetto.dev and chrome://tracing read it.
std::string chrome_trace(const std::vector<NodeProfile>& profile);

}  // namespace onnx_train
