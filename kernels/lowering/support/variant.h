// Variants of operators: a node becomes a call of a new function onnx_train.OPERATOR that has the node's attributes and
// repeats them as constants in its body. Used by passes, on one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A variant under construction. The node must outlive it.
class Variant {
 public:
  // The inputs are named x0, x1, ..
  Variant(const Node& node, int num_inputs);

  static std::string input(int i) { return "x" + std::to_string(i); }
  // Declares another attribute, which the caller sets on the call.
  void add_attribute(const std::string& name);

  // ---- Lines of the body
  void add_node(const Node& node, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);
  void add_op(const std::string& op, const std::vector<std::string>& inputs, const std::string& output);
  void add_cast(const std::string& from, const std::string& to, DType dtype);
  void add_ints(const std::string& name, const std::vector<int64_t>& values);

  // Adds an output to the function and to the call, where its name derives from `like`; null: the call omits it.
  void add_output(const std::string& name, const Value* like, const TensorType& type);

  // Adds the call before `place`. The caller then calls keep(), which adds the function to the model, or removes the
  // call.
  Node* add_call(const std::vector<Value*>& inputs, Node* place);
  void keep();

 private:
  struct Output {
    const Value* like;
    TensorType type;
  };

  const Node& node_;
  std::shared_ptr<onnx::FunctionProto> function_;
  std::vector<Output> outputs_;
};

}  // namespace onnx_train
