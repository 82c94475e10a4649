// Variants of operators: a node becomes a call of a new function onnx_train.OPERATOR that has the node's attributes,
// and a body of its own that repeats them as constants. Used by passes, on one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A variant under construction. The node must outlive it.
class Variant {
 public:
  // Inputs are x0, x1, ..
  Variant(const Node& node, int num_inputs);

  static std::string input(int i) { return "x" + std::to_string(i); }
  // Another attribute, which the caller sets on the call.
  void add_attribute(const std::string& name);

  // ---- Lines of the body
  void add_node(const Node& node, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);
  void add_op(const std::string& op, const std::vector<std::string>& inputs, const std::string& output);
  void add_cast(const std::string& from, const std::string& to, DType dtype);
  void add_ints(const std::string& name, const std::vector<int64_t>& values);

  // The next output of the function and of the call, which takes its name from `like` there; null: it has none.
  void add_output(const std::string& name, const Value* like, const TensorType& type);

  // Adds the call before `place`. The function becomes part of the model by keep(); without, remove the call.
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
