// Plans within a plan, on devices that use host memory: a call of subgraphs (kernels/subgraph_calls.h) is a
// node whose kernel runs the plans of its subgraphs, each made once. Steps of a Scan read their slices and write their
// states and results where the node's inputs and outputs are, so that a Scan needs the memory of one step.
#pragma once

#include "kernels/device.h"
#include "runtime/plan/plan.h"

namespace onnx_train {

// The row of the node's operator; null if the node calls no subgraphs, or the device does not use host memory.
const Kernel* find_subplan_kernel(const Device& device, const Node& node);

// Plans the node's subgraphs, as `options` say. Throws Error as Plan does. The device must outlive the result.
Prepared prepare_subplans(const Node& node, Device& device, const PlanOptions& options);

}  // namespace onnx_train
