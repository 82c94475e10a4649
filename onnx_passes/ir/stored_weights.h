// Frozen weights of a training model in 16 and in 4 bits: an initializer that is stored in fewer bits is two things in
// a message: an initializer of float16, bfloat16, int4 or uint4 under another name, whose metadata tell the weight's,
// and a Cast, which gives the weight. Values of the caller; const functions may run on any thread. Functions throw
// Error for a tensor whose data are damaged.
#pragma once

#include <string>
#include <unordered_set>

#include "onnx_passes/ir/message.h"

namespace onnx_train {

// The initializers of a graph's message that are stored in fewer bits, and the Casts after them. The message must
// outlive it.
class StoredWeights {
 public:
  explicit StoredWeights(const onnx::GraphProto& graph);

  bool contains(const onnx::TensorProto& tensor) const { return tensors_.contains(&tensor); }
  bool contains(const onnx::NodeProto& node) const { return casts_.contains(&node); }

  // Adds the weight of such an initializer to the graph.
  static Value* read(const onnx::TensorProto& tensor, const Contents& contents, Graph* graph);

 private:
  std::unordered_set<const onnx::TensorProto*> tensors_;
  std::unordered_set<const onnx::NodeProto*> casts_;
};

// The weights of a training model that its messages have in fewer bits: those that no entry point updates. The model
// must outlive it.
class FrozenWeights {
 public:
  explicit FrozenWeights(const Model& model);

  bool contains(const Value& value) const { return stored(value) != nullptr; }
  // Makes `tensor`, the initializer of such a weight but for its data, the one in fewer bits, and `cast` what gives the
  // weight. Large data are added to `contents`.
  void write(const Value& value, onnx::TensorProto* tensor, onnx::NodeProto* cast, Contents* contents) const;

 private:
  const Tensor* stored(const Value& value) const;
  std::string stored_name(const Value& value) const;
  bool is_taken(const std::string& name) const;

  const Model& model_;
  std::unordered_set<const Value*> updated_;
};

}  // namespace onnx_train
