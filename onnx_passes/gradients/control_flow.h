// What others need to know of the gradients of control flow.
#pragma once

#include <unordered_set>
#include <vector>

#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {

// The nodes in the subgraphs of an If or a Scan that cannot be differentiated, where gradients of these values, and of
// the node's float inputs, are wanted.
std::vector<Obstacle> obstacles_inside(const Node& node, const std::unordered_set<const Value*>& wanted);

}  // namespace onnx_train
