// The tensors of a model's message that may hold weights: initializers and constants, also in subgraphs and functions,
// in float32, float64, float16 or bfloat16. Functions on a message that one caller owns, whose tensors stay where they
// are meanwhile; any thread. They throw Error if contents cannot be read.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/message.h"

namespace onnx_train {

struct WeightPlace {
  onnx::TensorProto* tensor = nullptr;
  std::string name;
  std::vector<std::string> names;  // all that it has
  std::vector<std::string> told;   // by the modules that read it, where the file tells those of all nodes
  Tensor contents, changed;        // `changed` is empty where it stays
  bool is_uniform = false;
  bool is_known = false;  // it is a weight, or a view of one
};

std::vector<WeightPlace> find_places(ModelMessage* message);

// Adds the names that modules have for the tensors of the main graph, as its nodes tell them.
void add_names_of_modules(const ModelMessage& message, std::vector<WeightPlace>* places);

// All names that the initializers `weights` of a model have, the first of each its own.
std::vector<std::vector<std::string>> names_of_weights(const Model& model, const std::vector<const Value*>& weights);

}  // namespace onnx_train
