// Plans as tables, charts and JSON. Pure functions; any thread that may read the plan.
#pragma once

#include <functional>
#include <string>

#include "kernels/cost.h"
#include "runtime/plan/plan.h"

namespace onnx_train {

// One line a node: number, operator, outputs with types, bytes, kernel, and milliseconds where it was profiled. `width`
// as in TextTable, here and below.
std::string plan_table(const Plan& plan, size_t width = 0);

// A JSON array with an object a node, in order: index, op, name, kernel, ms (mean of the profiled runs; 0 without),
// flops by element type, bytes that it reads and writes, and roofline_ms: `least_milliseconds` of its cost (0 if null).
std::string plan_json(const Plan& plan, const std::function<double(const NodeCost&)>& least_milliseconds);

// One line a lowering pass: phase, name, nodes before and after it, and milliseconds. "-" stands for the nodes if it
// changed nothing.
std::string passes_table(const Plan& plan, size_t width = 0);

// The name of the operator, followed by what selects the variant of a function in our domain: bfloat16 operands,
// layout, epilogue.
std::string operator_text(const Node& node);

// The name of the kernel that runs it.
std::string kernel_name(const PlanStep& step);

// The arena over the steps: time runs to the right, offsets upwards; the largest buffers below by name.
std::string memory_chart(const Plan& plan, size_t width = 0);

// What a plan recomputes so that its arena fits into `budget` bytes, and at which cost; "" for a budget of 0.
std::string recomputation_text(const Plan& plan, size_t budget, size_t width = 0);

}  // namespace onnx_train
