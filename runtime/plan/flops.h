// The arithmetic of a forward model, counted from its shapes: two operations per multiply-add of products and
// convolutions, which dominate.
#pragma once

#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Returns the count, such as "1.1G", and the sizes assumed for symbolic dimensions. Counts what inference knows.
std::string describe_flops(const Graph& graph);

}  // namespace onnx_train
