// Weights that a file stores elsewhere than among its initializers. Functions on a model that one caller owns; throw
// nothing of their own.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Float constants that operators read as weights (weight_roles.h) become initializers of the main graph: Constant nodes
// of every form, ConstantOfShape, and constants in subgraphs; so do all float initializers of subgraphs, where they are
// judged as others are (constants.h). They keep their names; a name that is in use outside its subgraph is prefixed by
// the subgraph's attribute: "then_branch/weight". Data of layers whose weights are initializers stay where they are.
// Types must be inferred. Returns the names of what is read as a weight.
std::vector<std::string> lift_weights(Model* model);

// Removes nodes that only pass on an initializer: their readers read the initializer itself.
void read_initializers_directly(Graph* graph);

}  // namespace onnx_train
