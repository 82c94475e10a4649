#include "onnx_passes/passes/convert_dtype.h"

#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {
namespace {

constexpr auto kFloat = onnx::TensorProto::FLOAT;
constexpr auto kDouble = onnx::TensorProto::DOUBLE;

void convert(onnx::TensorProto* tensor) {
  if (tensor->data_type() != kFloat) return;
  const std::string name = tensor->name();
  to_proto(from_proto(*tensor).cast(DType::kDouble), name, tensor);
}

void convert(onnx::TypeProto* type) {
  if (type->has_sequence_type()) convert(type->mutable_sequence_type()->mutable_elem_type());
  if (type->has_optional_type()) convert(type->mutable_optional_type()->mutable_elem_type());
  if (type->has_tensor_type() && type->tensor_type().elem_type() == kFloat) {
    type->mutable_tensor_type()->set_elem_type(kDouble);
  }
}

void convert(onnx::GraphProto* graph);

void convert(onnx::NodeProto* node) {
  for (auto& attribute : *node->mutable_attribute()) {
    // The target of Cast, and the output type of random and window operators.
    const bool is_type =
        attribute.name() == "to" || attribute.name() == "dtype" || attribute.name() == "output_datatype";
    if (is_type && attribute.i() == kFloat) attribute.set_i(kDouble);
    if (attribute.has_t()) convert(attribute.mutable_t());
    for (auto& tensor : *attribute.mutable_tensors()) convert(&tensor);
    if (attribute.has_g()) convert(attribute.mutable_g());
    for (auto& graph : *attribute.mutable_graphs()) convert(&graph);
    if (node->op_type() != "Constant" || !node->domain().empty()) continue;
    // Constants with value_float or value_floats have no double form, so they become tensors.
    const bool scalar = attribute.name() == "value_float", list = attribute.name() == "value_floats";
    if ((!scalar && !list) || !attribute.ref_attr_name().empty()) continue;
    onnx::AttributeProto value;
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    value.mutable_t()->set_data_type(kDouble);
    if (scalar) value.mutable_t()->add_double_data(attribute.f());
    if (list) value.mutable_t()->add_dims(attribute.floats_size());
    for (float x : attribute.floats()) value.mutable_t()->add_double_data(x);
    attribute = value;
  }
}

void convert(onnx::GraphProto* graph) {
  for (auto& tensor : *graph->mutable_initializer()) convert(&tensor);
  for (auto& node : *graph->mutable_node()) convert(&node);
  for (auto* values : {graph->mutable_input(), graph->mutable_output(), graph->mutable_value_info()}) {
    for (auto& value : *values) convert(value.mutable_type());
  }
}

// A Constant with a float attribute of the function yields float32, so a Cast is added after it.
void widen_attribute_constants(onnx::FunctionProto* function) {
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
  nodes.Swap(function->mutable_node());
  for (auto& node : nodes) {
    onnx::NodeProto* added = function->add_node();
    *added = node;
    const bool reads_attribute =
        node.op_type() == "Constant" && node.attribute_size() == 1 && !node.attribute(0).ref_attr_name().empty() &&
        (node.attribute(0).name() == "value_float" || node.attribute(0).name() == "value_floats");
    if (!reads_attribute) continue;
    const std::string name = node.output(0);
    added->set_output(0, name + "/float");
    onnx::NodeProto* cast = function->add_node();
    cast->set_op_type("Cast");
    cast->add_input(name + "/float");
    cast->add_output(name);
    auto* to = cast->add_attribute();
    to->set_name("to");
    to->set_type(onnx::AttributeProto::INT);
    to->set_i(kDouble);
  }
}

}  // namespace

void convert_to_double(onnx::ModelProto* model) {
  convert(model->mutable_graph());
  for (auto& info : *model->mutable_training_info()) {
    convert(info.mutable_initialization());
    convert(info.mutable_algorithm());
  }
  for (auto& function : *model->mutable_functions()) {
    for (auto& node : *function.mutable_node()) convert(&node);
    for (auto& value : *function.mutable_value_info()) convert(value.mutable_type());
    widen_attribute_constants(&function);
  }
}

}  // namespace onnx_train
