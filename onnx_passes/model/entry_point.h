// Helpers of passes that extend an entry point. The caller owns the model; one thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Makes `value` an output of the algorithm, after its other results and before the new values of states. It gets the
// role and, if the model does not use it, the name. A value that is not an output of one of the algorithm's nodes is
// passed through an Identity.
Value* add_result(EntryPoint* entry, const std::string& role, Var value);

// Binds state <- next and makes `next`, named next/<state>, an output of the algorithm.
void bind_state(EntryPoint* entry, Value* state, Var next);

// Adds an input of the algorithm with a default, scalar or tensor, named after its role.
Value* add_input_with_default(EntryPoint* entry, const std::string& role, const Tensor& otherwise);

// Adds a state: an initializer of `graph` (the model's or an algorithm's), named `name` or, if the model uses that
// name, a variation of it.
Value* add_state(const Model& model, Graph* graph, const std::string& name, const Tensor& value, ValueRole role);

// The state of the entry point with this role, an initializer of its algorithm or of the inference graph; null if there
// is none.
Value* find_state(const EntryPoint& entry, const char* role);

// A list of names as JSON: ["a", "b"].
std::string json_list(const std::vector<std::string>& names);

// Adds roles to the values of a training model that another program wrote, according to their names: loss, accuracy,
// what they count (loss_count, accuracy_count), grad_norm; learning_rate, clip_norm, seed; next/<state>. Values that
// have a role keep it.
void assign_roles(Model* model);

}  // namespace onnx_train
