// Inference with a cache of its results: the layers of a network are alike, and its step has hundreds of optimizer
// calls that differ only in a shape. Valid while the model's functions do not change. The caller owns it; not
// thread-safe.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A key of everything that the output types of a call depend on: the function's body, the attributes, and what is known
// of the inputs. Empty if that cannot be listed: the body calls other functions or is too long to compare.
std::string key_of_call(const onnx::FunctionProto& function, const Node& call);

class InferenceCache {
 public:
  // Like check_equal_types(*node), then infer_types(node).
  void infer(Node* node);

 private:
  struct Inferred {
    TensorType type;
    std::optional<Dims> elements;
  };
  // Keyed by everything that inference reads of a node.
  std::unordered_map<std::string, std::vector<Inferred>> known_;
  std::string key_;
};

}  // namespace onnx_train
