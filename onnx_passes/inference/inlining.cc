#include "onnx_passes/inference/inlining.h"

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/schema.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/standard_bodies.h"

namespace onnx_train {
namespace {

// Replaces a body's attribute reference by the attribute of the call; false if the call does not have it.
bool resolve(const onnx::AttributeProto& reference, const onnx::FunctionProto& function, const onnx::NodeProto& call,
             onnx::AttributeProto* out) {
  for (const auto& given : call.attribute()) {
    if (given.name() != reference.ref_attr_name()) continue;
    *out = given;
    out->set_name(reference.name());
    return true;
  }
  for (const auto& standard : function.attribute_proto()) {
    if (standard.name() != reference.ref_attr_name()) continue;
    *out = standard;
    out->set_name(reference.name());
    return true;
  }
  return false;
}

// Renames the values of a body's subgraph to names that are unused in `graph`, and its outer values to those in
// `values`.
void rename_values(onnx::GraphProto* inner, const std::unordered_map<std::string, Value*>& values, const Graph& graph,
                   const std::string& prefix, const std::string& function) {
  std::unordered_map<std::string, std::string> names;
  for (const auto& [name, value] : values) {
    if (value) names[name] = value->name();
  }
  const auto define = [&](std::string* name) {
    if (!name->empty()) *name = names[*name] = graph.unique_name(concat(prefix, "/", inner->name(), "/", *name));
  };
  const auto read = [&](std::string* name) {
    const auto found = names.find(*name);
    if (found != names.end()) *name = found->second;
  };
  for (auto& input : *inner->mutable_input()) define(input.mutable_name());
  for (auto& tensor : *inner->mutable_initializer()) define(tensor.mutable_name());
  for (auto& node : *inner->mutable_node()) {
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g() || attribute.graphs_size() > 0 || !attribute.ref_attr_name().empty()) {
        fail("function '", function, "': ", node.op_type(),
             " inside a subgraph has a subgraph or an attribute of the function; it cannot be inlined here");
      }
    }
    for (std::string& name : *node.mutable_input()) read(&name);
    for (std::string& name : *node.mutable_output()) define(&name);
  }
  for (auto& output : *inner->mutable_output()) read(output.mutable_name());
}

}  // namespace

std::vector<Value*> instantiate(const onnx::FunctionProto& function, const onnx::NodeProto& call, Graph* graph,
                                Node* before, const std::vector<Value*>& inputs, const std::string& prefix) {
  std::unordered_map<std::string, Value*> values;
  for (int i = 0; i < function.input_size(); ++i) {
    values[function.input(i)] = static_cast<size_t>(i) < inputs.size() ? inputs[static_cast<size_t>(i)] : nullptr;
  }
  for (const auto& body : function.node()) {
    onnx::NodeProto shell = body;
    shell.clear_attribute();
    if (!body.name().empty()) shell.set_name(prefix + "/" + body.name());
    std::vector<const onnx::AttributeProto*> subgraphs;
    for (const auto& attribute : body.attribute()) {
      if (attribute.has_g()) {
        subgraphs.push_back(&attribute);
        onnx::AttributeProto* empty = shell.add_attribute();
        *empty = attribute;
        empty->mutable_g()->Clear();
      } else if (attribute.ref_attr_name().empty()) {
        *shell.add_attribute() = attribute;
      } else {
        onnx::AttributeProto resolved;
        if (resolve(attribute, function, call, &resolved)) *shell.add_attribute() = resolved;
      }
    }
    std::vector<Value*> arguments;
    for (const std::string& name : body.input()) {
      const auto found = values.find(name);
      if (found == values.end() && !name.empty())
        fail("function '", function.name(), "' reads '", name, "' before it is set");
      arguments.push_back(name.empty() ? nullptr : found->second);
    }
    std::vector<std::string> outputs;
    for (const std::string& name : body.output()) {
      outputs.push_back(name.empty() ? "" : graph->unique_name(prefix + "/" + name));
    }
    Node* node = graph->add_node(shell, arguments, outputs, before);
    for (const onnx::AttributeProto* attribute : subgraphs) {
      onnx::GraphProto inner = attribute->g();
      rename_values(&inner, values, *graph, prefix, function.name());
      from_proto(inner, graph->add_subgraph(node, attribute->name()));
    }
    for (int i = 0; i < body.output_size(); ++i) {
      if (!body.output(i).empty()) values[body.output(i)] = node->output(i);
    }
  }
  std::vector<Value*> outputs;
  for (const std::string& name : function.output()) {
    const auto found = values.find(name);
    outputs.push_back(found == values.end() ? nullptr : found->second);
  }
  return outputs;
}

namespace {

// A schema whose body is one for all types writes its constants as float32; they stand for numbers of the operand's
// type, which is double here.
void widen_constants(onnx::FunctionProto* body) {
  for (onnx::NodeProto& node : *body->mutable_node()) {
    if (node.op_type() != "Constant") continue;
    for (onnx::AttributeProto& a : *node.mutable_attribute()) {
      if (!a.has_t() || a.t().data_type() != onnx::TensorProto::FLOAT) continue;
      const Tensor wide = from_proto(a.t()).cast(DType::kDouble);
      to_proto(wide, "", a.mutable_t());
    }
  }
}

// The body from ONNX's schema, specialized to the node's input types.
bool schema_body(const Node& node, onnx::FunctionProto* body) {
  const onnx::OpSchema* schema = find_schema(node);
  if (!schema) return false;
  onnx::NodeProto proto = node.shell();
  std::vector<onnx::TypeProto> types;
  for (const Value* input : node.inputs()) {
    proto.add_input(input ? input->name() : "");
    types.emplace_back();
    if (input) to_proto(input->type(), &types.back());
  }
  for (const Value* output : node.outputs()) proto.add_output(output ? output->name() : "");
  // The bodies refer to attributes whose defaults are only in the schema.
  for (const auto& [name, attribute] : schema->attributes()) {
    if (!node.has_attr(name) && attribute.default_value.has_name()) *proto.add_attribute() = attribute.default_value;
  }
  const int version = static_cast<int>(node.graph().context().opset(node.domain()));
  if (schema->HasFunction()) {
    const auto* function = schema->GetFunction(version);
    if (!function) return false;
    *body = *function;
    *body->mutable_attribute_proto() = proto.attribute();
    if (node.num_inputs() > 0 && node.input(0) && node.input(0)->dtype() == DType::kDouble) widen_constants(body);
    return true;
  }
  if (!schema->HasContextDependentFunction()) return false;
  onnx::FunctionBodyBuildContextImpl context(proto, types);
  if (!schema->BuildContextDependentFunction(context, *body, version)) return false;
  *body->mutable_attribute_proto() = proto.attribute();
  return true;
}

}  // namespace

bool has_function_body(const Node& node) {
  if (node.graph().context().find_function(node.domain(), node.op(), node.overload())) return true;
  if (find_standard_body(node)) return true;
  onnx::FunctionProto body;
  return schema_body(node, &body);
}

std::vector<Value*> instantiate(const Graph& from, Graph* graph, const std::vector<Value*>& inputs,
                                const std::string& prefix) {
  onnx::GraphProto proto;
  to_proto(from, &proto, {.contents = false});
  onnx::FunctionProto function;
  function.set_name(prefix);
  for (const auto& input : proto.input()) function.add_input(input.name());
  for (const auto& weight : proto.initializer()) function.add_input(weight.name());
  for (const auto& output : proto.output()) function.add_output(output.name());
  function.mutable_node()->Swap(proto.mutable_node());
  return instantiate(function, {}, graph, nullptr, inputs, prefix);
}

namespace {

// The results of a body that is written here.
std::vector<Value*> write_body(const StandardBody& body, Node* node) {
  Builder b(&node->graph(), node);
  b.set_name(node->output() ? node->output()->name() : node->op());
  std::vector<Value*> results;
  for (const Var result : body.write(b, *node)) results.push_back(result.value());
  return results;
}

}  // namespace

bool inline_function(Node* node) {
  Graph& graph = node->graph();
  onnx::FunctionProto from_schema;
  const onnx::FunctionProto* function = graph.context().find_function(node->domain(), node->op(), node->overload());
  const StandardBody* standard = function ? nullptr : find_standard_body(*node);
  if (!function && !standard) {
    if (!schema_body(*node, &from_schema)) return false;
    function = &from_schema;
  }
  std::string prefix = node->name();
  for (const Value* output : node->outputs()) {
    if (prefix.empty() && output) prefix = output->name();
  }
  Node* last_before = node->previous();
  const auto results = standard ? write_body(*standard, node)
                                : instantiate(*function, node->shell(), &graph, node, node->inputs(), prefix);
  for (Node* n = last_before ? last_before->next() : graph.first(); n != node; n = n->next()) infer_types(n);
  for (int i = 0; i < node->num_outputs(); ++i) {
    Value* output = node->output(i);
    if (!output) continue;
    Value* result = static_cast<size_t>(i) < results.size() ? results[static_cast<size_t>(i)] : nullptr;
    if (!result) fail(node->label(), ": the body of its function does not set output ", i);
    graph.replace(output, result);
  }
  graph.remove(node);
  return true;
}

const onnx::FunctionProto* function_of(const Node& node) {
  return node.graph().context().find_function(node.domain(), node.op(), node.overload());
}

}  // namespace onnx_train
