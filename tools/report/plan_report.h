// Plans as tables and charts.
#pragma once

#include <string>

#include "runtime/plan.h"

namespace onnx_train {

// One line a node: number, operator, outputs with types, bytes, kernel, and milliseconds where it was profiled.
std::string plan_table(const Plan& plan);

// The name of the operator, followed by what selects the variant of a function in our domain: bfloat16 operands,
// layout, epilogue.
std::string operator_text(const Node& node);

// The name of the kernel that runs it.
std::string kernel_name(const PlanStep& step);

// The arena over the steps: time runs to the right, offsets upwards; the largest buffers below by name.
std::string memory_chart(const Plan& plan);

// What a plan recomputes so that its arena fits into `budget` bytes, and at which cost; "" for a budget of 0.
std::string recomputation_text(const Plan& plan, size_t budget);

}  // namespace onnx_train
