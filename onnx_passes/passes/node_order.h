// The order of a file's nodes. ONNX asks for a topological one; some writers (ONNX Runtime's float16 converter) append
// nodes where they please. A plain function on a message; any thread.
#pragma once

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Puts the nodes of `graph`, of its subgraphs and of `model`'s functions into a topological order; nodes stay where
// they are as far as the graph allows. Returns whether some node moved. Throws Error that names the nodes of a cycle.
bool sort_nodes(onnx::ModelProto* model);

}  // namespace onnx_train
