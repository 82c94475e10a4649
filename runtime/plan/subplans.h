// Plans within a plan: a call of subgraphs (kernels/subgraph_calls.h) is a node whose kernel runs the plans of its
// subgraphs. Steps of a Scan read their slices and write their states and results where the node's inputs and outputs
// are, so that a Scan needs the memory of one step. Branches, steps of a Scan and of a Loop are planned once, with the
// plan; a segment is planned for each set of contents that decide its shapes, when it runs, and has memory of its own.
// On devices with a memory of their own there are segments and Loops alone, whose kernels wait for the device.
#pragma once

#include "kernels/device.h"
#include "runtime/plan/plan.h"

namespace onnx_train {

// The row of the node's operator; null if the device does not run it so.
const Kernel* find_subplan_kernel(const Device& device, const Node& node);

// Whether the kernel of the call waits for the device, so that no run with it can be recorded.
bool waits_for_device(const Node& node);

// Plans the node's subgraphs, as `options` say. Throws Error as Plan does. The device must outlive the result.
Prepared prepare_subplans(const Node& node, Device& device, const PlanOptions& options);

}  // namespace onnx_train
