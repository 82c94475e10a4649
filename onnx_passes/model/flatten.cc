// Converts entry points to plain models: the concatenation of graph and algorithm that the ONNX standard defines.
#include <algorithm>
#include <unordered_set>

#include "onnx_passes/functions/declaration.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/model/plain_model.h"

namespace onnx_train {
namespace {

using ValueSet = std::unordered_set<const Value*>;

// Copies values and nodes of several graphs into one.
class Concatenation {
 public:
  Concatenation(Graph* to, Liveness liveness, ValueSet states = {})
      : to_(to), liveness_(std::move(liveness)), states_(std::move(states)) {}

  // The copy of `value`.
  Value* operator[](const Value* value) const { return copies_.at(value); }

  void add_input(const Value* value) {
    Value* same = to_->find(value->name());  // graph and algorithm may both declare it: it is one input
    Value* copy = same && to_->is_input(same) ? same : to_->add_input(value->name(), value->type());
    copies_[value] = copy;
    if (value->role()) copy->set_role(*value->role());
    if (value->is_initializer() && !states_.count(value)) add_initializer(value);
  }
  void add_initializer(const Value* value) {
    Value* existing = to_->find(value->name());
    const bool takes_default = existing && to_->is_input(existing) && !existing->is_initializer();
    const std::string name = takes_default ? value->name() : to_->unique_name(value->name());
    copies_[value] = takes_default ? to_->add_initializer(name, value->shared_initializer())
                                   : to_->add_constant(name, value->shared_initializer());
  }
  void add_nodes(const Graph& from) {
    for (const Node* node = from.first(); node; node = node->next()) {
      if (liveness_.runs(node)) copy_node(*node, to_);
    }
  }

 private:
  void copy_node(const Node& node, Graph* to) {
    std::vector<Value*> inputs;
    for (const Value* input : node.inputs()) inputs.push_back(input ? copies_.at(input) : nullptr);
    std::vector<std::string> outputs;
    for (const Value* output : node.outputs()) outputs.push_back(output ? to->unique_name(output->name()) : "");
    Node* copy = to->add_node(node, inputs, outputs);
    for (const auto& subgraph : node.subgraphs()) {
      copy_graph(*subgraph.graph, to->add_subgraph(copy, subgraph.attribute));
    }
    for (int i = 0; i < node.num_outputs(); ++i) {
      if (node.output(i)) record(node.output(i), copy->output(i));
    }
  }

  void copy_graph(const Graph& from, Graph* to) {
    to->shell() = from.shell();
    to->shell().clear_value_info();  // types are in the values
    for (const Value* v : from.inputs()) record(v, to->add_input(to->unique_name(v->name()), v->type()));
    for (const Value* v : from.initializers()) {
      Value* const* input = copies_.find(v);
      const std::string name = input ? (*input)->name() : to->unique_name(v->name());
      record(v, to->add_initializer(name, v->shared_initializer()));
    }
    for (const Node* n = from.first(); n; n = n->next()) copy_node(*n, to);
    for (const Value* v : from.outputs()) to->add_output(copies_.at(v));
  }

  // Known contents are not copied: those of a state that was an initializer are not known of an input.
  void record(const Value* from, Value* to) {
    to->set_type(from->type());
    copies_[from] = to;
  }

  Graph* to_;
  Liveness liveness_;
  ValueSet states_;  // states become inputs; their values in the file are not used
  ValueTable<Value*> copies_;
};

// The states that the bindings of all entry points write.
ValueSet all_states(const Model& model) {
  ValueSet states;
  for (const EntryPoint& entry : model.entry_points) {
    for (const Binding& b : entry.update_bindings) states.insert(b.state);
    for (const Binding& b : entry.initialization_bindings) states.insert(b.state);
  }
  return states;
}

// Keeps only the functions that the model's nodes call, directly or indirectly, and the domains in use.
class Usage {
 public:
  explicit Usage(const Context& context) : context_(context) {}

  void add(const Graph& graph) {
    for (const Node* node = graph.first(); node; node = node->next()) {
      add(node->shell());
      for (const auto& subgraph : node->subgraphs()) add(*subgraph.graph);
    }
  }
  void trim(Model* model) const {
    model->context->functions.erase_if([&](const auto& f) { return !functions_.count(f.get()); });
    std::erase_if(model->context->opsets, [&](const auto& o) { return !o.first.empty() && !domains_.count(o.first); });
    auto* imports = model->shell().mutable_opset_import();
    for (int i = imports->size() - 1; i >= 0; --i) {
      const std::string& domain = imports->Get(i).domain();
      if (domain != "ai.onnx" && !model->context->opsets.count(domain)) imports->DeleteSubrange(i, 1);
    }
  }

 private:
  void add(const onnx::NodeProto& node) {
    domains_.insert(node.domain());
    const auto* function = context_.find_function(node.domain(), node.op_type(), node.overload());
    if (!function || !functions_.insert(function).second) return;
    for (const auto& opset : function->opset_import()) domains_.insert(opset.domain());
    for (const auto& n : function->node()) add(n);
  }

  const Context& context_;
  std::unordered_set<const onnx::FunctionProto*> functions_;
  std::unordered_set<std::string> domains_;
};

// A model with the same functions, opsets and metadata, without a graph.
Model same_but_empty(const Model& model, const std::string& graph_name) {
  Model flat;
  flat.context->opsets = model.context->opsets;
  flat.context->functions = model.context->functions;
  flat.shell() = model.shell();
  flat.graph->shell().set_name(graph_name);
  return flat;
}

void add_result(Graph* graph, Value* value, const Value& original) {
  graph->add_output(value);
  if (original.role()) value->set_role(*original.role());
}

// Makes `value` an output, the next value of `state`; through an Identity if it is already another output.
void add_next(Graph* graph, Value* value, const Value* state) {
  const TensorType &from = value->type(), &to = state->type();
  const bool other_shape = from.dims && from.is_static() && to.dims && from.dims != to.dims;
  if ((from.dtype != DType::kUndefined && from.dtype != to.dtype) || other_shape) {
    fail("entry point '", graph->name(), "' assigns '", value->name(), "', ", to_string(from), ", to the state '",
         state->name(), "', ", to_string(to));
  }
  const std::string name = "next/" + state->name();
  if (!value->producer() || graph->is_output(value)) {
    value = graph->add_node("Identity", {value}, {graph->unique_name(name)})->output();
  }
  graph->claim_name(value, name);
  value->set_type(to);
  value->set_role({roles::kNext, state->name()});
  graph->add_output(value);
}

// The inference graph's outputs and everything they depend on.
Liveness live_in_predict(const Model& model) {
  Liveness live;
  for (const Value* output : model.graph->outputs()) live.need(output);
  live.trace(*model.graph);
  return live;
}

Liveness live_in(const Model& model, const EntryPoint& entry) {
  Liveness live;
  for (const Value* output : entry.algorithm->outputs()) live.need(output);
  for (const Binding& b : entry.update_bindings) live.need(b.next);
  live.trace(*entry.algorithm);
  live.trace(*model.graph);
  return live;
}

// States are identified by name in the whole model, so no other input may have the name of a state.
void check_inputs(const Model& model, const Model& flat, const std::vector<const Value*>& own_states) {
  std::unordered_set<std::string_view> own, other;
  for (const Value* state : own_states) own.insert(state->name());
  for (const Value* state : all_states(model)) other.insert(state->name());
  for (const Value* input : flat.graph->inputs()) {
    if (other.contains(input->name()) && !own.contains(input->name())) {
      fail("entry point '", flat.graph->name(), "' has an input '", input->name(),
           "', which is the name of a state of another entry point; rename one of them");
    }
  }
}

const EntryPoint& find_entry(const Model& model, const EntryName& name) {
  if (const EntryPoint* found = model.find_entry_point(name)) return *found;
  std::string known = concat(name_of(Entry::kPredict), ", ", name_of(Entry::kInitialize));
  for (const EntryPoint& entry : model.entry_points) known += concat(", ", entry.name());
  fail_as(ErrorCode::kNoEntryPoint, "the model has no entry point '", name, "'; it has ", known,
          model.entry_points.empty() ? ": it is a forward model; onnx-train build makes a training model of it" : "");
}

// The states that one entry point reads or writes: initializers of the graph, then of the algorithm.
std::vector<const Value*> entry_states(const Model& model, const EntryPoint& entry, const Liveness& live) {
  const ValueSet all = all_states(model);
  ValueSet written;
  for (const Binding& b : entry.update_bindings) {
    if (!written.insert(b.state).second) fail("entry point '", entry.name(), "' updates '", b.state->name(), "' twice");
  }
  std::vector<const Value*> states;
  for (const Graph* graph : {model.graph.get(), entry.algorithm.get()}) {
    for (const Value* value : graph->initializers()) {
      if (all.count(value) && (written.count(value) || live.needs(value))) states.push_back(value);
    }
  }
  return states;
}

// `inputs` are the initializers that become inputs with defaults.
Model flatten_predict(const Model& model, const ValueSet& inputs = {}) {
  const Graph& graph = *model.graph;
  Model flat = same_but_empty(model, graph.name());
  flat.graph->shell() = graph.shell();
  const Liveness live = live_in_predict(model);
  Concatenation join(flat.graph.get(), live);
  for (const Value* input : graph.inputs()) join.add_input(input);
  for (const Value* initializer : graph.initializers()) {
    if (!live.needs(initializer) || graph.is_input(initializer)) continue;
    if (inputs.count(initializer)) {
      join.add_input(initializer);
    } else {
      join.add_initializer(initializer);
    }
  }
  join.add_nodes(graph);
  for (const Value* output : graph.outputs()) flat.graph->add_output(join[output]);
  return without_unused(std::move(flat));
}

Model flatten_initialize(const Model& model) {
  Model flat = same_but_empty(model, name_of(Entry::kInitialize));
  Liveness live;
  for (const EntryPoint& entry : model.entry_points) {
    for (const Binding& b : entry.initialization_bindings) live.need(b.next);
    live.trace(*entry.initialization);
  }
  Concatenation join(flat.graph.get(), live);
  for (const EntryPoint& entry : model.entry_points) {
    for (const Value* initializer : entry.initialization->initializers()) {
      if (!live.needs(initializer)) continue;
      if (initializer->has_role(roles::kSeed)) {
        join.add_input(initializer);
      } else {
        join.add_initializer(initializer);
      }
    }
    join.add_nodes(*entry.initialization);
  }
  for (const EntryPoint& entry : model.entry_points) {
    for (const Binding& b : entry.initialization_bindings) add_next(flat.graph.get(), join[b.next], b.state);
  }
  if (flat.graph->outputs().empty()) fail("the model has no initialization: it starts from the state in the file");
  check_inputs(model, flat, {});
  return without_unused(std::move(flat));
}

// The name of the first output of the node that `node` repeats; "" if it repeats none.
std::string repeated(const Node& node) {
  for (const auto& entry : node.shell().metadata_props()) {
    if (entry.key() == kRepeats) return entry.value();
  }
  return "";
}

// A node that repeats an earlier one and computes more takes its place.
void merge_repeats(Graph* graph) {
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    const std::string name = repeated(*node);
    const Value* value = name.empty() ? nullptr : graph->find(name);
    Node* first = value ? value->producer() : nullptr;
    if (!first || first == node || !first->is(node->op(), node->domain()) || first->inputs() != node->inputs())
      continue;
    graph->move(node, first);
    if (node->name().empty()) node->mutable_shell().set_name(first->name());
    for (int i = 0; i < first->num_outputs(); ++i) {
      Value* const old = first->output(i);
      if (!old) continue;
      const std::string own = old->name();
      graph->replace(old, node->output(i));
      if (old->name() == own) graph->rename(old, graph->unique_name(own + "/repeated"));
      if (node->output(i)->name() != own) graph->rename(node->output(i), own);
    }
    graph->remove(first);
  }
}

Model flatten_entry(const Model& model, const EntryPoint& entry) {
  const Graph& graph = *model.graph;
  const Graph& algorithm = *entry.algorithm;
  Model flat = same_but_empty(model, entry.name().text());
  onnx::GraphProto& shell = flat.graph->shell();
  shell.mutable_input()->MergeFrom(graph.shell().input());  // for their documentation
  shell.mutable_input()->MergeFrom(algorithm.shell().input());
  shell.mutable_output()->MergeFrom(algorithm.shell().output());

  const Liveness live = live_in(model, entry);
  const auto states = entry_states(model, entry, live);
  const ValueSet is_state(states.begin(), states.end());
  Concatenation join(flat.graph.get(), live, is_state);
  for (const Value* input : graph.inputs()) {
    if (live.needs(input) && !is_state.count(input)) join.add_input(input);
  }
  for (const Value* input : algorithm.inputs()) {
    if (!is_state.count(input)) join.add_input(input);
  }
  for (const Value* state : states) join.add_input(state);
  for (const Graph* from : {&graph, &algorithm}) {
    for (const Value* value : from->initializers()) {
      if (live.needs(value) && !is_state.count(value) && !from->is_input(value)) join.add_initializer(value);
    }
  }
  join.add_nodes(graph);
  join.add_nodes(algorithm);

  for (const Value* output : algorithm.outputs()) {
    if (!output->has_role(roles::kNext)) add_result(flat.graph.get(), join[output], *output);
  }
  for (const Binding& b : entry.update_bindings) add_next(flat.graph.get(), join[b.next], b.state);
  merge_repeats(flat.graph.get());
  check_inputs(model, flat, states);
  return without_unused(std::move(flat));
}

}  // namespace

Model without_unused(Model flat) {
  Usage usage(*flat.context);
  usage.add(*flat.graph);
  usage.trim(&flat);
  return flat;
}

Model flatten(const Model& model, const EntryName& entry) {
  if (entry == Entry::kPredict) return flatten_predict(model);
  if (entry == Entry::kInitialize) return flatten_initialize(model);
  return flatten_entry(model, find_entry(model, entry));
}

Model plain_model(const Model& model, const EntryName& entry) {
  return entry == Entry::kPredict ? flatten_predict(model, all_states(model)) : flatten(model, entry);
}

std::vector<std::string> state_of(const Model& model, const EntryName& entry) {
  std::vector<std::string> names;
  if (entry == Entry::kInitialize) {
    for (const EntryPoint& e : model.entry_points) {
      for (const Binding& b : e.initialization_bindings) names.push_back(b.state->name());
    }
  } else if (entry == Entry::kPredict) {
    const ValueSet states = all_states(model);
    const Liveness live = live_in_predict(model);
    for (const Value* value : model.graph->initializers()) {
      if (live.needs(value) && states.count(value)) names.push_back(value->name());
    }
  } else {
    const EntryPoint& found = find_entry(model, entry);
    for (const Value* value : entry_states(model, found, live_in(model, found))) names.push_back(value->name());
  }
  return names;
}

}  // namespace onnx_train
