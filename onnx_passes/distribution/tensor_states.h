// States of a flattened entry point that are initializers, as in inference. A function on a graph that one caller owns.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Makes inputs without a value of the initializers whose names `is_state` accepts.
void make_inputs_of_states(Graph* graph, const std::function<bool(const std::string&)>& is_state);

}  // namespace onnx_train
