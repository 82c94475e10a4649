// Inference that does the same work once: a network is made of layers that are alike, and its step of hundreds of
// optimizer calls that differ in a shape. Lives while the model's functions stay as they are. Not thread-safe.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// All that the types of a call's outputs depend on: the function's body, the attributes, and what is known of the
// inputs. Empty where that is more: the body calls other functions, or is too long to compare.
std::string key_of_call(const onnx::FunctionProto& function, const Node& call);

class InferenceCache {
 public:
  // infer_types(node).
  void infer(Node* node);

 private:
  struct Inferred {
    TensorType type;
    std::optional<Dims> elements;
  };
  // By all that inference asks of a node.
  std::unordered_map<std::string, std::vector<Inferred>> known_;
  std::string key_;
};

}  // namespace onnx_train
