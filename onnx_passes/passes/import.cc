// A forward model from any exporter as the other passes want it: opset 21 or later, no functions, no unnamed nodes,
// no inputs that are weights, integer constants as initializers, every type inferred by us.
#include <onnx/defs/schema.h>
#include <onnx/inliner/inliner.h>

#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/inlining.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes/passes.h"
#include "onnx_passes/passes/rebatch.h"
#include "onnx_passes/passes/upgrade.h"

namespace onnx_train {
namespace {

// What ONNX Runtime 1.31 runs, so that what we write runs there, too.
constexpr int64_t kNewestOpset = 26;
constexpr int64_t kIrVersion = 10;  // of opset 21 and 22

template <typename F>
void for_each_graph(Graph* graph, const F& f) {
  f(graph);
  for (Node* node = graph->first(); node; node = node->next()) {
    for (const auto& subgraph : node->subgraphs()) for_each_graph(subgraph.graph.get(), f);
  }
}

// ---- On the message: functions

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

void fill_defaults(Nodes* nodes, const onnx::ModelProto& model) {
  for (auto& node : *nodes) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) fill_defaults(attribute.mutable_g()->mutable_node(), model);
      for (auto& graph : *attribute.mutable_graphs()) fill_defaults(graph.mutable_node(), model);
    }
    for (const auto& f : model.functions()) {
      if (f.name() != node.op_type() || f.domain() != node.domain() || f.overload() != node.overload()) continue;
      for (const auto& standard : f.attribute_proto()) {
        bool given = false;
        for (const auto& a : node.attribute()) given = given || a.name() == standard.name();
        if (!given) *node.add_attribute() = standard;
      }
    }
  }
}

void inline_functions(onnx::ModelProto* proto) {
  if (proto->functions_size() == 0) return;
  const onnx::ModelProto& model = *proto;
  fill_defaults(proto->mutable_graph()->mutable_node(), model);
  for (auto& f : *proto->mutable_functions()) fill_defaults(f.mutable_node(), model);
  try {
    onnx::inliner::InlineLocalFunctions(*proto);
  } catch (const std::exception& error) {
    fail("[Import] the model's functions cannot be inlined: ", error.what());
  }
  if (proto->functions_size() > 0) {
    const auto& f = proto->functions(0);
    fail("[Import] function '", f.domain(), ".", f.name(),
         "' uses another opset than the model and cannot be inlined; export the model without local functions");
  }
}

void check_versions(const onnx::ModelProto& proto) {
  bool found = false;
  for (const auto& opset : proto.opset_import()) {
    if (!opset.domain().empty() && opset.domain() != "ai.onnx") continue;
    found = true;
    if (opset.version() > kNewestOpset) {
      fail("[Import] the model uses opset ", opset.version(), "; the newest that is supported is ", kNewestOpset,
           ": export it with opset ", kBaseOpset, " to ", kNewestOpset);
    }
  }
  if (!found) fail("[Import] the model does not say which ONNX opset it uses");
}

// ---- On the graph: one spelling for what exporters write in several ways

// Old files list their weights among the inputs.
void drop_inputs_with_values(Graph* graph) {
  const std::vector<Value*> inputs = graph->inputs();
  for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {  // the last one is the cheapest to remove
    if ((*input)->is_initializer()) graph->remove_input(*input);
  }
}

// A subgraph's output that an outer graph computes is passed through an Identity, so that every use is a node's.
void own_outputs(Graph* graph) {
  std::vector<Value*> outputs = graph->outputs();
  for (Value*& output : outputs) {
    if (&output->graph() == graph) continue;
    const TensorType type = output->type();
    output = graph->add_node("Identity", {output}, {graph->unique_name(output->name() + "/inner")})->output();
    output->set_type(type);
  }
  graph->set_outputs(std::move(outputs));
}

void name_nodes(Graph* graph) {
  std::unordered_set<std::string> taken;
  std::unordered_map<std::string, size_t> next;  // of each base: the smaller numbers are taken
  for (Node* node = graph->first(); node; node = node->next()) {
    if (!node->name().empty() && taken.insert(node->name()).second) continue;
    const std::string base = node->name().empty() ? node->op() : node->name();
    for (size_t& i = next[base];; ++i) {
      const std::string name = concat(base, "_", i);
      if (!taken.insert(name).second) continue;
      node->mutable_shell().set_name(name);
      break;
    }
  }
}

// One name for ONNX's own domain, and no attribute of a later opset that says nothing (torch's downgraded exports).
void normalize_nodes(Graph* graph) {
  for (Node* node = graph->first(); node; node = node->next()) {
    if (node->domain() == "ai.onnx") node->set_op(node->op());
    const char* const noop = "noop_with_empty_axes";
    if (node->op().starts_with("Reduce") && graph->context().opset() < 18 && node->attr(noop, 0) == 0) {
      if (!node->is("ReduceSum") || graph->context().opset() < 13) node->remove_attr(noop);
    }
  }
}

// Numbers that exporters write into the graph are constants; only initializers may be trained.
bool is_lifted_scalar(const Value& value) {
  const auto& name = value.name();
  return is_float(value.dtype()) && value.type().dims && value.rank() == 0 && name.starts_with("val_") &&
         name.find_first_not_of("0123456789", 4) == std::string::npos;
}

// Float constants stay Constant nodes, integer and boolean ones become initializers.
void sort_constants(Graph* graph) {
  for (Value* value : std::vector<Value*>(graph->initializers())) {
    if (!is_lifted_scalar(*value) || graph->is_output(value) || graph->is_input(value)) continue;
    const Tensor tensor = from_proto(*value->initializer());
    const std::string name = value->name();
    graph->rename(value, graph->unique_name(name + "/lifted"));
    Node* node = graph->add_node("Constant", {}, {name}, "", graph->first());
    node->set_attr("value", tensor);
    node->output()->set_type(value->type());
    graph->replace(value, node->output());
    graph->remove_initializer(value);
  }
  for (Node* node = graph->first(); node;) {
    Node* next = node->next();
    const Tensor tensor = node->is("Constant") ? constant_of(node->output()) : Tensor();
    if (!tensor.empty() && !is_float(tensor.dtype()) && !graph->is_output(node->output())) {
      const std::string name = node->output()->name();
      graph->rename(node->output(), graph->unique_name(name + "/node"));
      graph->replace(node->output(), graph->add_initializer(name, tensor));
      graph->remove(node);
    }
    node = next;
  }
}

// Dimensions without a size or a name get a name of their own.
void name_dimensions(Graph* graph) {
  for (Value* input : graph->inputs()) {
    TensorType type = input->type();
    if (!type.dims) continue;
    for (size_t i = 0; i < type.dims->size(); ++i) {
      Dim& dim = (*type.dims)[i];
      const bool named = !dim.symbol().empty() && dim.symbol() != "?" && dim.symbol() != "-1";
      const bool sized = dim.known() && dim.value() > 0;
      if (!named && !sized) dim = Dim(concat(input->name(), "_dim", i));
    }
    input->set_type(std::move(type));
  }
}

// Types that we can infer are inferred from the inputs alone: what the file says of them may be stale.
void forget_types(Graph* graph) {
  graph->shell().clear_value_info();
  for (Node* node = graph->first(); node; node = node->next()) {
    if (!is_known_operator(*node)) continue;
    for (Value* output : node->outputs()) {
      if (!output) continue;
      output->set_type({});
      output->set_elements(std::nullopt);
    }
  }
}

// An operator's rules, kernels and inference may rely on what its schema says of inputs, outputs and attributes.
void verify_nodes(Graph* graph) {
  for (const Node* node = graph->first(); node; node = node->next()) {
    const auto version = static_cast<int>(graph->context().opset(node->domain()));
    const auto* schema = onnx::OpSchemaRegistry::Schema(node->op(), version, node->domain());
    if (!schema) continue;
    if (schema->Deprecated() && node->is("GroupNormalization")) continue;  // exported nevertheless; upgrade checks it
    onnx::NodeProto proto = node->shell();
    for (const Value* v : node->inputs()) proto.add_input(v ? v->name() : "");
    for (const Value* v : node->outputs()) proto.add_output(v ? v->name() : "");
    try {
      schema->Verify(proto);
    } catch (const std::exception& error) {
      fail("[Import] ", node->label(), " is not valid: ", error.what());
    }
  }
}

// ---- Sequences: torch splits a tensor into a sequence and takes its parts out again

// The sizes of the parts; none when they are not known.
std::vector<int64_t> part_sizes(const Node& split) {
  const Value* x = split.input(0);
  if (!x->has_rank() || split.attr("keepdims", 1) == 0) return {};
  const Dim& along = (*x->type().dims)[static_cast<size_t>(normalize_axis(split.attr("axis", 0), x->rank()))];
  const Tensor sizes = split.input(1) ? constant_of(split.input(1)) : Tensor::scalar<int64_t>(1);
  if (sizes.empty()) return {};
  if (!sizes.shape().empty()) return sizes.to_ints();
  const int64_t size = sizes.to_ints()[0];
  if (!along.known() || size <= 0 || along.value() / size > 1024) return {};
  std::vector<int64_t> parts(static_cast<size_t>(along.value() / size), size);
  if (along.value() % size != 0) parts.push_back(along.value() % size);
  return parts;
}

void unpack_sequence(Node* node) {
  const auto parts = part_sizes(*node);
  const auto count = static_cast<int64_t>(parts.size());
  const std::vector<Use> uses = node->output()->uses();
  for (const Use& use : uses) {
    const Tensor index = constant_of(use.node->input(1));
    const bool inside = use.node->is("SequenceAt") && index.size() == 1 && &use.node->graph() == &node->graph() &&
                        index.to_ints()[0] >= -count && index.to_ints()[0] < count;
    if (!inside || node->graph().is_output(use.node->output())) return;
  }
  if (parts.empty() || node->graph().is_output(node->output())) return;
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name() + "/part");
  const auto outputs = b.ops("Split", static_cast<int>(count), {b.var(node->input(0)), b.ints(parts)},
                             {{"axis", node->attr("axis", 0)}});
  for (const Use& use : uses) {
    const int64_t index = constant_of(use.node->input(1)).to_ints()[0];
    node->graph().replace(use.node->output(), outputs[static_cast<size_t>(index < 0 ? index + count : index)].value());
    node->graph().remove(use.node);
  }
  node->graph().remove(node);
}

// Infers all types, with sequences unpacked on the way.
void infer(Graph* graph) {
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    infer_types(node);
    next = node->next();
    if (!node->is("SplitToSequence") || !node->output()) continue;
    Node* before = node->previous();
    unpack_sequence(node);
    next = before ? before->next() : graph->first();
    if (next == node) next = node->next();
  }
}

void set_versions(Model* model) {
  auto& shell = model->shell();
  if (model->context->opset() <= 22 || shell.ir_version() < kIrVersion) shell.set_ir_version(kIrVersion);
}

}  // namespace

Model import_model(onnx::ModelProto proto, const std::string& batch) {
  check_versions(proto);
  if (proto.training_info_size() > 0) {  // a training model is trained anew from its inference graph
    onnx::ModelProto inference;
    to_proto(strip_training(from_proto(std::move(proto))), &inference);
    proto.Swap(&inference);
  }
  inline_functions(&proto);
  Model model = from_proto(std::move(proto));
  Graph* graph = model.graph.get();
  if (graph->outputs().empty()) fail("[Import] the model has no outputs");

  drop_inputs_with_values(graph);
  name_dimensions(graph);
  for_each_graph(graph, own_outputs);
  for_each_graph(graph, normalize_nodes);
  for_each_graph(graph, verify_nodes);
  for_each_graph(graph, forget_types);
  for_each_graph(graph, sort_constants);
  upgrade(&model);
  infer(graph);
  for_each_graph(graph, name_nodes);
  for_each_graph(graph, verify_nodes);
  if (!batch.empty()) rebatch(&model, batch);
  set_versions(&model);
  return model;
}

}  // namespace onnx_train
