// Sorts the nodes of a file. ONNX requires a topological order, but some writers (ONNX Runtime's float16 converter)
// append nodes anywhere. A pure function on a message; any thread.
#pragma once

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Puts the nodes of `graph`, its subgraphs and `model`'s functions into a topological order, moving as few nodes as
// possible. Returns whether a node moved. Throws Error that names the nodes of a cycle.
bool sort_nodes(onnx::ModelProto* model);

// Throws Error that names a node of the graph which reads a name that no input, initializer or other node defines, or
// writes one that another of them has.
void expect_defined_names(const onnx::GraphProto& graph);

}  // namespace onnx_train
