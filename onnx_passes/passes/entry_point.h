// What every pass that adds to an entry point needs. The caller owns the model; one thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Makes `value` the output `name` of the algorithm, behind its other results and before the next/<state> values.
// A value that is no node's output of the algorithm is passed through an Identity. Throws Error when the model uses
// the name for something else.
Value* add_result(EntryPoint* entry, const std::string& name, Var value);

// Binds state <- next: names the value next/<state> and makes it an output of the algorithm.
void bind_state(EntryPoint* entry, Value* state, Var next);

// An input of the algorithm with a default, scalar or tensor.
Value* add_input_with_default(EntryPoint* entry, const std::string& name, const Tensor& otherwise);

// A list of names as JSON: ["a", "b"].
std::string json_list(const std::vector<std::string>& names);

}  // namespace onnx_train
