// What control flow is in a plan. The pass runs on the thread that builds the plan.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Replaces each Scan with a known number of steps by the nodes of its steps, and each If by the nodes of both branches
// and a Where for each result; fold_constants has replaced those whose condition is known by one branch. What is
// computed twice then is computed once. A Loop that its condition ends becomes a call (kernels/subgraph_calls.h). With
// `can_call` each If, and each Scan of many nodes, becomes one, too. Throws Error that names the node if the branches
// of an If give different shapes, or a Scan has too many steps.
bool expand_control_flow(Model& model, bool can_call);

}  // namespace onnx_train
