// Plans as tables, charts and JSON. Pure functions; any thread that may read the plan.
#pragma once

#include <functional>
#include <string>

#include "kernels/cost.h"
#include "runtime/plan/plan.h"

namespace onnx_train {

// Returns one line per node: number, operator, outputs with types, bytes, kernel, and milliseconds if profiled. `width`
// as in TextTable, here and below.
std::string plan_table(const Plan& plan, size_t width = 0);

// Returns a JSON array with one object per node, in order: index, op, name, kernel, ms (mean of the profiled runs; 0
// without), flops by element type, bytes that it reads and writes, and roofline_ms: `least_milliseconds` of its cost (0
// if null).
std::string plan_json(const Plan& plan, const std::function<double(const NodeCost&)>& least_milliseconds);

// Returns one line per lowering pass: phase, name, nodes before and after it ("-" if it changed nothing), and
// milliseconds.
std::string passes_table(const Plan& plan, size_t width = 0);

// Returns the operator's name and the properties that select a variant in our domain: 16-bit operands, layout,
// epilogue.
std::string operator_text(const Node& node);

std::string kernel_name(const PlanStep& step);

// Charts the arena over the steps: time to the right, offsets upwards, and the largest buffers by name below.
std::string memory_chart(const Plan& plan, size_t width = 0);

// Describes what a plan recomputes to fit its arena into `budget` bytes, and the cost; "" for a budget of 0.
std::string recomputation_text(const Plan& plan, size_t budget, size_t width = 0);

}  // namespace onnx_train
