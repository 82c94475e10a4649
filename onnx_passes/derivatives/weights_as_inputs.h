// Plain models that programs run with weights of their own: what a flattened step keeps as initializers or states
// becomes inputs with the file's values as defaults. Functions on models that one caller owns; one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

constexpr const char* kPass = "onnx_train.pass";  // metadata of such a model: what it computes

// An initializer of the model that is an input of the plain one, and its value in the file.
struct InputWithDefault {
  std::string name;
  const char* role;
  std::shared_ptr<const onnx::TensorProto> value;
};

// The running statistics of batch norm. In frozen mode they are constants to the training passes, but whoever trains
// the model in its other mode changes them.
std::vector<Value*> running_statistics(const Graph& graph);

// Weights and statistics become inputs of `flat`, the flattened step of `model`; states that the step updates are
// inputs already. Returns all of them.
std::vector<InputWithDefault> make_inputs(Graph* flat, const Model& model, const std::vector<Value*>& weights,
                                          const std::vector<Value*>& statistics);

// Names the model, removes what its outputs do not need, and gives the inputs that are left their defaults and roles.
// Inputs for directions are kept, read or not: a caller gives one for each weight.
Model finish_pass(Model model, const char* name, const std::vector<InputWithDefault>& parameters);
// Whether the model is such: it is complete, and needs no import.
bool is_finished_pass(const onnx::ModelProto& proto);

}  // namespace onnx_train
