// Nodes whose attributes or constants say sizes, as a rank of a tensor-parallel group runs them. Functions on a graph
// that one caller owns; throw Error.
#pragma once

#include "onnx_passes/distribution/layout_rules.h"

namespace onnx_train {

// Sizes that the node reads become those of its parts; those that it gives stay those of all parts together. `layouts`
// are the node's; its outputs have the types of all parts together, its inputs those of parts.
void fit_to_parts(Node* node, const NodeLayouts& layouts, int64_t parts);

}  // namespace onnx_train
