// What every pass that adds to an entry point needs. The caller owns the model; one thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Makes `value` an output of the algorithm, after its other results and before the new values of states. It gets the
// role and, as far as the model leaves it free, the name. A value that is no node's output of the algorithm is passed
// through an Identity.
Value* add_result(EntryPoint* entry, const std::string& role, Var value);

// Binds state <- next, and makes `next`, named next/<state>, an output of the algorithm.
void bind_state(EntryPoint* entry, Value* state, Var next);

// An input of the algorithm with a default, scalar or tensor, named as its role.
Value* add_input_with_default(EntryPoint* entry, const std::string& role, const Tensor& otherwise);

// A state: an initializer of `graph`, which is the model's or an algorithm, under a name that no other value of the
// model has: `name` where it is free.
Value* add_state(const Model& model, Graph* graph, const std::string& name, const Tensor& value, ValueRole role);

// The state of an entry point with this role, an initializer of its algorithm or the inference graph; null for none.
Value* find_state(const EntryPoint& entry, const char* role);

// A list of names as JSON: ["a", "b"].
std::string json_list(const std::vector<std::string>& names);

}  // namespace onnx_train
