// Takes the branch of an If that alone fits what follows. Exporters write x.squeeze(-1) on a size that they do not know
// as If(size == 1, Squeeze, Identity): the two branches differ in rank, and a Gemm after it, or the declared rank of an
// output, tells which of them the model means. A pass on a graph that one caller owns.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/import/declared_shapes.h"
#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// `graph` is an imported main graph with its types. Calls `decided(label of the If, its branch, reason)` for each If
// that gives way to a branch.
void decide_branches(Graph* graph, const Declarations& declared,
                     const std::function<void(const std::string&, const std::string&, const std::string&)>& decided);

}  // namespace onnx_train
