// Which nodes draw random numbers of their own. Any thread.
#pragma once

#include <string_view>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// True for ONNX's generators, whose outputs differ from run to run. Our own operators draw from a key that is an input,
// and so are functions of their inputs.
bool is_random(const Node& node);
bool is_random_operator(std::string_view op);  // of ONNX's own domain

}  // namespace onnx_train
