// One form for what exporters write in several ways: the steps of import_model that look at a graph alone.
#include <onnx/defs/schema.h>

#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/import/import_steps.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

void for_each_graph(Graph* graph, const std::function<void(Graph*)>& f) {
  f(graph);
  for (Node* node = graph->first(); node; node = node->next()) {
    for (const auto& subgraph : node->subgraphs()) for_each_graph(subgraph.graph.get(), f);
  }
}

namespace {

// Checks the type without copying the weight.
bool may_be_integer(const Node& node) {
  if (!node.is("Constant") || !node.output()) return false;
  const auto* value = node.find_attr("value");
  return !value || !is_float(static_cast<DType>(value->t().data_type()));
}

}  // namespace

// Old files list their weights among the inputs.
void drop_inputs_with_values(Graph* graph) {
  const std::vector<Value*> inputs = graph->inputs();
  for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {  // the last one is the cheapest to remove
    if ((*input)->is_initializer()) graph->remove_input(*input);
  }
}

// A subgraph's output that an outer graph computes is passed through an Identity, so that every use is that of a node.
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
  std::unordered_map<std::string, size_t> next;  // for each base name: all smaller numbers are in use
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

// Uses one name for ONNX's own domain, writes a default that inference mistakes, and removes attributes of later opsets
// that have no effect (torch's downgraded exports).
void normalize_nodes(Graph* graph) {
  for (Node* node = graph->first(); node; node = node->next()) {
    if (node->domain() == "ai.onnx") node->set_op(node->op());
    // ONNX's inference takes the default for 0.
    if (node->is("STFT") && !node->has_attr("onesided")) node->set_attr("onesided", 1);
    const char* const noop = "noop_with_empty_axes";
    if (node->op().starts_with("Reduce") && graph->context().opset() < 18 && node->attr(noop, 0) == 0) {
      if (!node->is("ReduceSum") || graph->context().opset() < 13) node->remove_attr(noop);
    }
  }
}

// Integer and boolean constants become initializers; float constants that are not weights stay Constant nodes.
void sort_constants(Graph* graph) {
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    const Tensor tensor = may_be_integer(*node) ? constant_of(node->output()) : Tensor();
    if (tensor.empty() || is_float(tensor.dtype()) || graph->is_output(node->output())) continue;
    const std::string name = node->output()->name();
    graph->rename(node->output(), graph->unique_name(name + "/node"));
    graph->replace(node->output(), graph->add_initializer(name, tensor));
    graph->remove(node);
  }
}

// Gives dimensions without a size or name a name of their own.
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

// Types that can be inferred are inferred from the inputs alone, because the file's declarations may be stale.
void forget_types(Graph* graph) {
  graph->shell().clear_value_info();
  for (Node* node = graph->first(); node; node = node->next()) {
    if (!is_known_operator(*node) && !find_foreign(*node)) continue;
    for (Value* output : node->outputs()) {
      if (!output) continue;
      output->set_type({});
      output->set_elements(std::nullopt);
    }
  }
}

// Rules, kernels and inference of an operator may rely on what its schema says of inputs, outputs and attributes.
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

// Renames values of a subgraph that have the name of a value in an outer graph, which folding branches and lifting
// weights can cause.
void rename_shadows(Graph* graph) {
  const auto rename = [&](Value* value) {
    if (value && graph->parent() && graph->parent()->find(value->name()))
      graph->rename(value, graph->unique_name(value->name()));
  };
  for (Value* input : graph->inputs()) rename(input);
  for (Value* initializer : graph->initializers()) rename(initializer);
  for (Node* node = graph->first(); node; node = node->next()) {
    for (Value* output : node->outputs()) rename(output);
  }
}

}  // namespace onnx_train
