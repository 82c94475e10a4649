// Plans that fit into a budget and into the machine's memory. Called by a session, on its thread.
#pragma once

#include <functional>
#include <memory>

#include "runtime/plan/plan.h"

namespace onnx_train {

// Returns a plan whose arena has at most `budget` bytes. `make(values)` makes a plan with at most `values` bytes of
// values alive at once (LoweringOptions::memory). The arena's size differs from that and is known only after planning,
// so several plans may be made, the first without recomputation; the first that fits is returned. Throws Error if none
// fits, listing the largest buffers at the peak step of the last plan.
std::unique_ptr<Plan> plan_within(size_t budget, const std::function<std::unique_ptr<Plan>(size_t values)>& make);

// Throws Error if running the plan needs `needed` bytes and the machine has fewer; lists the largest buffers.
void check_available(const Plan& plan, size_t needed, size_t available);

// Returns the largest buffers of the arena at its peak step, one per line.
std::string largest_buffers(const Plan& plan);

}  // namespace onnx_train
