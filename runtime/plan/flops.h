// Arithmetic of a forward model, counted from its shapes: two for each multiply-add of products and convolutions, which
// are nearly all there is.
#pragma once

#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// "1.1G for each sample", with what was assumed of symbolic dimensions. Counts what inference knows.
std::string describe_flops(const Graph& graph);

}  // namespace onnx_train
