// Nodes whose attributes or constants say sizes or places, as a rank of a tensor-parallel group runs them. Functions on
// a graph that one caller owns; throw Error.
#pragma once

#include "onnx_passes/distribution/layout_rules.h"
#include "onnx_passes/distribution/part_values.h"

namespace onnx_train {

// Sizes that the node reads become those of its parts; those that it gives stay those of all parts together; indices
// into an axis that is cut become those of the rank's own run. `layouts` are the node's; its outputs have the types of
// all parts together, its inputs those of parts. Returns the node that has the outputs then; null if ranks have them
// whole, as others compute them.
Node* fit_to_parts(Node* node, const NodeLayouts& layouts, const PartOf& rank);

// The gradient of a table of which each rank has one run of rows: that of its own rows, where `node` is that of all.
Var gradient_of_own_rows(Node* node, const Cut& cut, const PartOf& rank, Node* before);
// Whether it can be asked for.
bool is_gradient_of_rows(const Node* node, const Cut& cut);

}  // namespace onnx_train
