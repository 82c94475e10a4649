// Weights that a file keeps elsewhere than among its initializers. A function on a model that one caller owns; throws
// nothing of its own.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Float constants that operators read as weights (weight_roles.h) become initializers of the main graph: Constant
// nodes of every form, ConstantOfShape, and what subgraphs hold. They keep their names; one that is taken outside its
// subgraph gets the subgraph's attribute before it: "then_branch/weight". Types are inferred by now. Returns the names.
std::vector<std::string> lift_weights(Model* model);

// Nodes that hand on an initializer as it is go: who reads it reads the initializer itself.
void read_initializers_directly(Graph* graph);

}  // namespace onnx_train
