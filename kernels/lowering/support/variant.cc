#include "kernels/lowering/support/variant.h"

#include "kernels/lowering/support/outline.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

Variant::Variant(const Node& node, int num_inputs)
    : node_(node), function_(new_function(&node.graph().context(), node.op())) {
  for (int i = 0; i < num_inputs; ++i) function_->add_input(input(i));
  for (const onnx::AttributeProto& attribute : node.shell().attribute()) add_attribute(attribute.name());
}

void Variant::add_attribute(const std::string& name) { function_->add_attribute(name); }

void Variant::add_node(const Node& node, const std::vector<std::string>& inputs,
                       const std::vector<std::string>& outputs) {
  onnx::NodeProto line = node.shell();
  for (const std::string& name : inputs) line.add_input(name);
  for (const std::string& name : outputs) line.add_output(name);
  *function_->add_node() = std::move(line);
}

void Variant::add_op(const std::string& op, const std::vector<std::string>& inputs, const std::string& output) {
  onnx::NodeProto* line = function_->add_node();
  line->set_op_type(op);
  for (const std::string& name : inputs) line->add_input(name);
  line->add_output(output);
}

void Variant::add_cast(const std::string& from, const std::string& to, DType dtype) {
  onnx_train::add_cast(function_.get(), from, to, dtype);
}

void Variant::add_ints(const std::string& name, const std::vector<int64_t>& values) {
  add_op("Constant", {}, name);
  onnx::AttributeProto* attribute = function_->mutable_node(function_->node_size() - 1)->add_attribute();
  attribute->set_name("value_ints");
  attribute->set_type(onnx::AttributeProto::INTS);
  for (const int64_t value : values) attribute->add_ints(value);
}

void Variant::add_output(const std::string& name, const Value* like, const TensorType& type) {
  function_->add_output(name);
  outputs_.push_back({like, type});
}

Node* Variant::add_call(const std::vector<Value*>& inputs, Node* place) {
  Graph& graph = place->graph();
  onnx::NodeProto shell = node_.shell();
  shell.set_domain(kDomain);
  shell.set_overload(function_->overload());
  std::vector<std::string> names;
  for (const Output& output : outputs_) names.push_back(output.like ? graph.unique_name(output.like->name()) : "");
  Node* call = graph.add_node(shell, inputs, names, place);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (Value* output = call->output(static_cast<int>(i))) output->set_type(outputs_[i].type);
  }
  return call;
}

void Variant::keep() { node_.graph().context().functions.push_back(function_); }

}  // namespace onnx_train
