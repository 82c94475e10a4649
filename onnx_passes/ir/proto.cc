// Converts Model to ModelMessage and ModelProto and back. Shells keep every field that is not an edge, so the
// conversion is lossless.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/stored_weights.h"

namespace onnx_train {
namespace {

constexpr int kMaxSubgraphDepth = 32;

// ---- Roles and gradients, as metadata

constexpr const char* kRole = "onnx_train.role";
constexpr const char* kRoleOf = "onnx_train.of";
constexpr std::string_view kGradient = "onnx_train.gradient:";  // followed by the weight; the value is the gradient

void read_role(const Properties& properties, Value* value) {
  const std::string* name = find_property(properties, kRole);
  if (!name || name->empty()) return;
  const std::string* of = find_property(properties, kRoleOf);
  value->set_role({*name, of ? *of : ""});
}

// Leaves properties unchanged that are correct already.
void write_role(const ValueRole* role, Properties* properties) {
  const std::string* name = find_property(*properties, kRole);
  const std::string* of = find_property(*properties, kRoleOf);
  if ((name ? *name : "") == (role ? role->name : "") && (of ? *of : "") == (role ? role->of : "")) return;
  for (int i = properties->size() - 1; i >= 0; --i) {
    if (properties->Get(i).key() == kRole || properties->Get(i).key() == kRoleOf) properties->DeleteSubrange(i, 1);
  }
  if (!role) return;
  add_property(properties, kRole, role->name);
  if (!role->of.empty()) add_property(properties, kRoleOf, role->of);
}

// ---- Graphs

void read_graph(const onnx::GraphProto& proto, const Contents& contents, Graph* graph, int depth);

void read_node(const onnx::NodeProto& proto, const Contents& contents, Graph* graph, int depth) {
  std::vector<Value*> inputs;
  for (const std::string& name : proto.input()) {
    Value* value = name.empty() ? nullptr : graph->find(name);
    if (!value && !name.empty()) {
      fail("node '", proto.name(), "' (", proto.op_type(), ") reads '", name,
           "', which nothing before it defines; the graph is cyclic, out of order or damaged");
    }
    inputs.push_back(value);
  }
  onnx::NodeProto shell = proto;
  for (auto& attribute : *shell.mutable_attribute()) {
    if (attribute.has_g()) attribute.mutable_g()->Clear();
    attribute.clear_graphs();
  }
  Node* node = graph->add_node(shell, inputs, {proto.output().begin(), proto.output().end()});
  for (const auto& attribute : proto.attribute()) {
    if (attribute.has_g()) read_graph(attribute.g(), contents, graph->add_subgraph(node, attribute.name()), depth + 1);
    for (const auto& g : attribute.graphs()) {
      read_graph(g, contents, graph->add_subgraph(node, attribute.name()), depth + 1);
    }
  }
}

Value* read_initializer(const onnx::TensorProto& tensor, const Contents& contents, Graph* graph) {
  const auto index = reference_of(tensor);
  if (!index) return graph->add_initializer(tensor);
  if (!has_four_bits(tensor))
    return graph->add_initializer(tensor.name(), make_initializer(tensor, referred(contents, *index)));
  onnx::TensorProto whole = tensor;
  put_contents(referred(contents, *index), &whole);
  return graph->add_initializer(std::move(whole));
}

void read_graph(const onnx::GraphProto& proto, const Contents& contents, Graph* graph, int depth) {
  if (depth > kMaxSubgraphDepth)
    fail("graph '", proto.name(), "': subgraphs are nested more than ", kMaxSubgraphDepth, " deep");
  onnx::GraphProto& shell = graph->shell();
  shell.set_name(proto.name());
  if (!proto.has_name()) shell.clear_name();
  if (proto.has_doc_string()) shell.set_doc_string(proto.doc_string());
  *shell.mutable_input() = proto.input();
  *shell.mutable_output() = proto.output();
  *shell.mutable_value_info() = proto.value_info();
  *shell.mutable_quantization_annotation() = proto.quantization_annotation();
  *shell.mutable_metadata_props() = proto.metadata_props();

  for (const auto& input : proto.input()) {
    read_role(input.metadata_props(), graph->add_input(input.name(), from_proto(input.type())));
  }
  const StoredWeights stored(proto);
  for (const auto& tensor : proto.initializer()) {
    const auto read = stored.contains(tensor) ? StoredWeights::read : read_initializer;
    read_role(tensor.metadata_props(), read(tensor, contents, graph));
  }
  if (proto.sparse_initializer_size() > 0) {
    fail("initializer '", proto.sparse_initializer(0).values().name(), "' is sparse; store it dense");
  }
  for (const auto& node : proto.node()) {
    if (!stored.contains(node)) read_node(node, contents, graph, depth);
  }
  for (const auto& info : proto.value_info()) {
    Value* value = graph->find(info.name());
    if (value && &value->graph() == graph) value->set_type(from_proto(info.type()));
  }
  for (const auto& output : proto.output()) {
    Value* value = graph->find(output.name());
    if (!value) fail("graph '", proto.name(), "': nothing defines its output '", output.name(), "'");
    if (value->dtype() == DType::kUndefined && output.has_type()) value->set_type(from_proto(output.type()));
    read_role(output.metadata_props(), value);
    graph->add_output(value);
  }
}

using Infos = google::protobuf::RepeatedPtrField<onnx::ValueInfoProto>;

// Writes the entry of `value`: the original one with updated type and role, or a new one.
void write_info(const Value& value, const Infos& originals, std::unordered_map<std::string, int>& index,
                onnx::ValueInfoProto* out) {
  if (index.empty()) {
    for (int i = 0; i < originals.size(); ++i) index.emplace(originals.Get(i).name(), i);
  }
  const auto found = index.find(value.name());
  if (found != index.end()) *out = originals.Get(found->second);
  out->set_name(value.name());
  const bool tensor = !out->has_type() || out->type().has_tensor_type();
  if (tensor && value.dtype() != DType::kUndefined && from_proto(out->type()) != value.type()) {
    to_proto(value.type(), out->mutable_type());
  }
  write_role(value.role(), out->mutable_metadata_props());
}

}  // namespace

void from_proto(const onnx::GraphProto& proto, Graph* graph) { read_graph(proto, {}, graph, 0); }

namespace {

// Small tensors, and those of types without numeric contents, stay in the message.
bool may_leave_out(const onnx::TensorProto& tensor) {
  return tensor.raw_data().size() >= kMinBytesBeside && may_be_beside(static_cast<DType>(tensor.data_type()));
}

// Writes graphs; contents stored beside messages go to `beside` or, if that is null, into the message. The weights of
// `frozen`, which may be null, are written as StoredWeights reads them.
class GraphWriter {
 public:
  GraphWriter(ToProtoOptions options, Contents* beside, const FrozenWeights* frozen = nullptr)
      : options_(options), beside_(beside), frozen_(frozen) {}

  void write(const Graph& graph, onnx::GraphProto* proto) {
    const onnx::GraphProto& shell = graph.shell();
    *proto = shell;
    proto->clear_input();
    proto->clear_output();
    proto->clear_value_info();
    std::unordered_map<std::string, int> inputs, outputs, infos;
    for (const Value* v : graph.inputs()) write_info(*v, shell.input(), inputs, proto->add_input());
    for (const Value* v : graph.outputs()) write_info(*v, shell.output(), outputs, proto->add_output());
    for (const Value* v : graph.initializers()) write_initializer(*v, proto);
    for (const auto& info : shell.value_info()) {
      const Value* value = graph.find(info.name());
      if (value) write_info(*value, shell.value_info(), infos, proto->add_value_info());
    }
    if (options_.all_types && infos.empty()) {
      for (int i = 0; i < shell.value_info_size(); ++i) infos.emplace(shell.value_info(i).name(), i);
    }
    for (const Node* node = graph.first(); node; node = node->next()) {
      write_node(*node, proto->add_node());
      if (!options_.all_types) continue;
      for (const Value* v : node->outputs()) {
        if (!v || v->dtype() == DType::kUndefined || infos.count(v->name()) || graph.is_output(v)) continue;
        auto* info = proto->add_value_info();
        info->set_name(v->name());
        to_proto(v->type(), info->mutable_type());
      }
    }
  }

 private:
  void write_initializer(const Value& value, onnx::GraphProto* proto) {
    onnx::TensorProto* const out = proto->add_initializer();
    const onnx::TensorProto& tensor = *value.initializer();
    const Tensor* beside = contents_beside(value.shared_initializer());
    if (!options_.contents && (beside || may_leave_out(tensor))) {
      *out->mutable_dims() = tensor.dims();
      out->set_data_type(tensor.data_type());
    } else {
      *out = tensor;
    }
    out->set_name(value.name());
    write_role(value.role(), out->mutable_metadata_props());
    if (!beside || !options_.contents) return;
    if (frozen_ && frozen_->contains(value)) return frozen_->write(value, out, proto->add_node(), beside_);
    if (beside_) {
      set_reference(beside_->size(), out);
      beside_->push_back(*beside);
    } else {
      put_contents(stored_contents(value), out);
    }
  }

  void write_node(const Node& node, onnx::NodeProto* out) {
    *out = node.shell();
    for (const Value* v : node.inputs()) out->add_input(v ? v->name() : "");
    for (const Value* v : node.outputs()) out->add_output(v ? v->name() : "");
    GraphWriter inner({.all_types = options_.all_types}, beside_);
    size_t next = 0;
    for (auto& attribute : *out->mutable_attribute()) {
      const auto type = attribute.type();
      if (type == onnx::AttributeProto::GRAPH && next < node.subgraphs().size()) {
        inner.write(*node.subgraphs()[next++].graph, attribute.mutable_g());
      }
      while (type == onnx::AttributeProto::GRAPHS && next < node.subgraphs().size() &&
             node.subgraphs()[next].attribute == attribute.name()) {
        inner.write(*node.subgraphs()[next++].graph, attribute.add_graphs());
      }
    }
  }

  ToProtoOptions options_;
  Contents* beside_;
  const FrozenWeights* frozen_;
};

}  // namespace

void to_proto(const Graph& graph, onnx::GraphProto* proto, ToProtoOptions options) {
  GraphWriter(options, nullptr).write(graph, proto);
}

namespace {

std::vector<Binding> read_bindings(const Properties& protos, const Graph& states, const Graph& values,
                                   const EntryName& entry) {
  std::vector<Binding> bindings;
  for (const auto& b : protos) {
    Value* state = states.find(b.key());
    Value* next = values.find(b.value());
    if (!state || !state->is_initializer())
      fail("entry point '", entry, "' updates '", b.key(), "', which is no initializer");
    if (!next) fail("entry point '", entry, "' assigns '", b.value(), "' to '", b.key(), "', but nothing defines it");
    bindings.push_back({state, next});
  }
  return bindings;
}

void write_bindings(const std::vector<Binding>& bindings, Properties* protos) {
  for (const Binding& b : bindings) add_property(protos, b.state->name(), b.next->name());
}

// Removes the gradients from the algorithm's metadata.
void read_gradients(EntryPoint* entry) {
  Graph& algorithm = *entry->algorithm;
  Properties& properties = *algorithm.shell().mutable_metadata_props();
  Properties others;
  for (auto& property : properties) {
    if (!property.key().starts_with(kGradient)) {
      others.Add()->Swap(&property);
      continue;
    }
    const std::string weight = property.key().substr(kGradient.size());
    Value* of = algorithm.find(weight);
    Value* gradient = algorithm.find(property.value());
    if (!of || !of->is_initializer() || !gradient) {
      fail("entry point '", entry->name(), "': the metadata call '", property.value(), "' the gradient of '", weight,
           "'; one of them is missing");
    }
    entry->gradients.push_back({of, gradient});
  }
  properties.Swap(&others);
}

}  // namespace

Model from_proto(onnx::ModelProto proto) { return from_message({std::move(proto), {}}); }

Model from_message(ModelMessage message) {
  onnx::ModelProto& proto = message.proto;
  Model model;
  for (const auto& opset : proto.opset_import()) {
    const std::string domain = opset.domain() == "ai.onnx" ? "" : opset.domain();
    model.context->opsets[domain] = opset.version();
  }
  for (auto& f : *proto.mutable_functions()) {
    auto function = std::make_shared<onnx::FunctionProto>();
    function->Swap(&f);
    model.context->functions.push_back(std::move(function));
  }
  proto.clear_functions();
  read_graph(proto.graph(), message.contents, model.graph.get(), 0);
  proto.clear_graph();
  for (auto& info : *proto.mutable_training_info()) {
    EntryPoint& entry = model.add_entry_point(info.algorithm().name());
    read_graph(info.algorithm(), message.contents, entry.algorithm.get(), 0);
    read_graph(info.initialization(), message.contents, entry.initialization.get(), 0);
    read_gradients(&entry);
    entry.update_bindings = read_bindings(info.update_binding(), *entry.algorithm, *entry.algorithm, entry.name());
    entry.initialization_bindings =
        read_bindings(info.initialization_binding(), *entry.algorithm, *entry.initialization, entry.name());
  }
  proto.clear_training_info();
  model.shell() = proto;  // a copy, because clearing fields does not free their memory
  return model;
}

namespace {

void write_model(const Model& model, const ToProtoOptions& options, Contents* beside, onnx::ModelProto* proto) {
  const FrozenWeights frozen(model);
  const bool is_training = !model.entry_points.empty();  // other programs read others: weights are initializers there
  GraphWriter writer(options, beside, beside && is_training ? &frozen : nullptr);
  *proto = model.shell();
  proto->clear_opset_import();
  // In the order of the original, followed by entries that passes have added, by name.
  std::map<std::string, int64_t> opsets(model.context->opsets.begin(), model.context->opsets.end());
  for (const auto& opset : model.shell().opset_import()) {
    const std::string domain = opset.domain() == "ai.onnx" ? "" : opset.domain();
    const auto known = model.context->opsets.find(domain);
    if (known == model.context->opsets.end()) continue;
    auto* out = proto->add_opset_import();
    *out = opset;
    out->set_version(known->second);
    opsets.erase(domain);
  }
  for (const auto& [domain, version] : opsets) {
    auto* out = proto->add_opset_import();
    out->set_domain(domain);
    out->set_version(version);
  }
  writer.write(*model.graph, proto->mutable_graph());
  for (const EntryPoint& entry : model.entry_points) {
    auto* info = proto->add_training_info();
    writer.write(*entry.algorithm, info->mutable_algorithm());
    for (const WeightGradient& g : entry.gradients) {
      add_property(info->mutable_algorithm()->mutable_metadata_props(), concat(kGradient, g.weight->name()),
                   g.gradient->name());
    }
    if (entry.initialization->num_nodes() > 0 || !entry.initialization->outputs().empty()) {
      writer.write(*entry.initialization, info->mutable_initialization());
    }
    write_bindings(entry.update_bindings, info->mutable_update_binding());
    write_bindings(entry.initialization_bindings, info->mutable_initialization_binding());
  }
  for (const auto& f : model.context->functions) *proto->add_functions() = *f;
}

}  // namespace

void to_proto(const Model& model, onnx::ModelProto* proto, ToProtoOptions options) {
  write_model(model, options, nullptr, proto);
}

ModelMessage to_message(const Model& model, bool all_types) {
  ModelMessage message;
  write_model(model, {.all_types = all_types}, &message.contents, &message.proto);
  return message;
}

}  // namespace onnx_train
