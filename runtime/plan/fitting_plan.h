// Plans that fit into memory: into a budget, and into the machine. Called by a session, on its thread.
#pragma once

#include <functional>
#include <memory>

#include "runtime/plan/plan.h"

namespace onnx_train {

// Returns a plan whose arena has at most `budget` bytes. `make(values)` makes a plan with at most `values` bytes of
// values alive at once (LoweringOptions::memory). The size of the arena differs from that and is known only after
// planning, so several plans are made; the first that fits without recomputation is taken. Throws Error when none fits,
// listing the largest buffers at the peak step of the smallest plan.
std::unique_ptr<Plan> plan_within(size_t budget, const std::function<std::unique_ptr<Plan>(size_t values)>& make);

// Throws Error when running the plan needs `needed` bytes and the machine has fewer; lists the largest buffers.
void check_available(const Plan& plan, size_t needed, size_t available);

// The largest buffers of the arena at its peak step, one per line.
std::string largest_buffers(const Plan& plan);

}  // namespace onnx_train
