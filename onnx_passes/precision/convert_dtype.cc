#include "onnx_passes/precision/convert_dtype.h"

#include <onnx/defs/schema.h>

#include <map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {
namespace {

constexpr auto kFloat = onnx::TensorProto::FLOAT;
constexpr auto kDouble = onnx::TensorProto::DOUBLE;

void convert(onnx::TensorProto* tensor) {
  if (tensor->data_type() != kFloat) return;
  const std::string name = tensor->name();
  const auto metadata = tensor->metadata_props();
  to_proto(from_proto(*tensor).cast(DType::kDouble), name, tensor);
  *tensor->mutable_metadata_props() = metadata;
}

void convert(onnx::TypeProto* type) {
  if (type->has_sequence_type()) convert(type->mutable_sequence_type()->mutable_elem_type());
  if (type->has_optional_type()) convert(type->mutable_optional_type()->mutable_elem_type());
  if (type->has_tensor_type() && type->tensor_type().elem_type() == kFloat) {
    type->mutable_tensor_type()->set_elem_type(kDouble);
  }
}

void convert(onnx::GraphProto* graph, int opset);

void set_double(onnx::AttributeProto* value, const Tensor& tensor) {
  value->set_name("value");
  value->set_type(onnx::AttributeProto::TENSOR);
  to_proto(tensor, "", value->mutable_t());
}

void convert(onnx::NodeProto* node, int opset) {
  // Without a value it is zeros of float32.
  const bool gives_zeros =
      node->op_type() == "ConstantOfShape" && node->domain().empty() && node->attribute_size() == 0;
  if (gives_zeros) set_double(node->add_attribute(), Tensor(DType::kDouble, {1}));
  for (auto& attribute : *node->mutable_attribute()) {
    // The target of Cast, and the output type of random and window operators.
    const bool is_type =
        attribute.name() == "to" || attribute.name() == "dtype" || attribute.name() == "output_datatype";
    if (is_type && attribute.i() == kFloat) attribute.set_i(kDouble);
    if (attribute.has_t()) convert(attribute.mutable_t());
    for (auto& tensor : *attribute.mutable_tensors()) convert(&tensor);
    if (attribute.has_g()) convert(attribute.mutable_g(), opset);
    for (auto& graph : *attribute.mutable_graphs()) convert(&graph, opset);
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

// ---- Inputs that are float32 whatever the operator computes with: the scales of Resize

class FloatInputs {
 public:
  FloatInputs(const onnx::GraphProto& graph, int opset) : opset_(opset) {
    for (const auto& tensor : graph.initializer()) constants_[tensor.name()] = tensor;
    for (const auto& node : graph.node()) {
      if (node.op_type() != "Constant" || !node.domain().empty() || node.attribute_size() != 1) continue;
      if (node.attribute(0).has_t()) constants_[node.output(0)] = node.attribute(0).t();
    }
  }

  // Puts in front of each node of the graph, which is converted, what gives such inputs as float32.
  void keep(onnx::GraphProto* graph) {
    google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
    nodes.Swap(graph->mutable_node());
    for (auto& node : nodes) {
      const auto* schema = onnx::OpSchemaRegistry::Schema(node.op_type(), opset_, node.domain());
      for (int i = 0; schema && i < node.input_size() && i < static_cast<int>(schema->inputs().size()); ++i) {
        // A type of its own, not the type of what the operator computes: Celu's has one choice, and computes in
        // float64.
        const bool only_float = schema->inputs()[static_cast<size_t>(i)].GetTypeStr() == "tensor(float)";
        if (only_float && !node.input(i).empty()) node.set_input(i, as_float(node.input(i), graph));
      }
      *graph->add_node() = node;
    }
  }

 private:
  // Adds a node that gives the value as float32.
  std::string as_float(const std::string& name, onnx::GraphProto* graph) {
    const std::string made = concat(name, "/float32/", ++made_);
    onnx::NodeProto* node = graph->add_node();
    node->add_output(made);
    onnx::AttributeProto* attribute = node->add_attribute();
    const auto constant = constants_.find(name);
    if (constant != constants_.end()) {
      node->set_op_type("Constant");
      attribute->set_name("value");
      attribute->set_type(onnx::AttributeProto::TENSOR);
      *attribute->mutable_t() = constant->second;
    } else {
      node->set_op_type("Cast");
      node->add_input(name);
      attribute->set_name("to");
      attribute->set_type(onnx::AttributeProto::INT);
      attribute->set_i(kFloat);
    }
    return made;
  }

  const int opset_;
  std::map<std::string, onnx::TensorProto> constants_;  // before they are converted
  int made_ = 0;
};

void convert(onnx::GraphProto* graph, int opset) {
  FloatInputs float_inputs(*graph, opset);
  for (auto& tensor : *graph->mutable_initializer()) convert(&tensor);
  for (auto& node : *graph->mutable_node()) convert(&node, opset);
  float_inputs.keep(graph);
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
  int opset = 1;
  for (const auto& import : model->opset_import()) {
    if (import.domain().empty()) opset = static_cast<int>(import.version());
  }
  convert(model->mutable_graph(), opset);
  for (auto& info : *model->mutable_training_info()) {
    convert(info.mutable_initialization(), opset);
    convert(info.mutable_algorithm(), opset);
  }
  for (auto& function : *model->mutable_functions()) {
    for (auto& node : *function.mutable_node()) convert(&node, opset);
    for (auto& value : *function.mutable_value_info()) convert(value.mutable_type());
    widen_attribute_constants(&function);
  }
}

}  // namespace onnx_train
