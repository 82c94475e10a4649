// Plans that fit into memory: into a budget, and into the machine.
#pragma once

#include <functional>
#include <memory>

#include "runtime/plan.h"

namespace onnx_train {

// A plan whose arena has at most `budget` bytes. `make(values)` makes a plan of which no more than `values` bytes are
// alive at once by LoweringOptions::memory; what the arena adds to that, or saves, shows only when the plan is there,
// so a few are made. The first that fits without recomputing is taken as it is. Throws Error when none fits; it shows
// the largest buffers of the smallest plan at its fullest node.
std::unique_ptr<Plan> plan_within(size_t budget, const std::function<std::unique_ptr<Plan>(size_t values)>& make);

// Throws Error when running the plan takes `needed` bytes and the machine has fewer; it shows the largest buffers, too.
void check_available(const Plan& plan, size_t needed, size_t available);

// The largest buffers of the arena at its fullest node, a line each.
std::string largest_buffers(const Plan& plan);

}  // namespace onnx_train
