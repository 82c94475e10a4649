// The shapes that the branches of an If give. The pass runs on the thread that builds the plan.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A plan needs one shape of what an If gives. Where data decide a size of one branch, it must be that of the other one:
// a Reshape makes it known, and fails in a run where it is another. Returns whether there are any, in the graph or in
// its subgraphs; the caller infers types anew.
bool give_one_shape(Graph* graph);

}  // namespace onnx_train
