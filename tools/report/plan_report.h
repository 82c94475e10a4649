// Plans as tables and charts.
#pragma once

#include <string>

#include "runtime/plan.h"

namespace onnx_train {

// One line a node: number, operator, outputs with types, bytes, kernel, and milliseconds where it was profiled.
std::string plan_table(const Plan& plan);

// The name of the kernel that runs it.
std::string kernel_name(const PlanStep& step);

// The arena over the steps: time runs to the right, offsets upwards; the largest buffers below by name.
std::string memory_chart(const Plan& plan);

}  // namespace onnx_train
