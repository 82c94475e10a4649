// Refuses models with operators that nothing here defines, before inference stumbles over their missing types. A pure
// function; any thread.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Throws Error that names all operators on which the graph's outputs depend and which neither ONNX's own domain nor a
// function of the model defines. Looks into subgraphs only with `inside`: an If may still lose one of its branches.
void expect_known_operators(const Graph& graph, bool inside);

}  // namespace onnx_train
