// Nodes that read and write 16 bits and compute in float32.
#pragma once

#include <functional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

class Device;

// Absorbs the casts around nodes that `takes` accepts: Cast, Softmax, Cast becomes one call of onnx_train.Softmax,
// which computes in float32 and rounds as the Cast does. An operator's row lists the inputs and outputs that may have
// 16 bits. A node without such a kernel on `device` keeps its casts. Returns whether the model changed.
bool narrow_nodes(Model& model, const Device& device, const std::function<bool(const Node&)>& takes);

}  // namespace onnx_train
