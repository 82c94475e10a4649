// Imports a forward model from any exporter into the form that other passes expect: opset 21 to 26, no functions, named
// nodes in topological order, no weights among the inputs, weights and integer constants as initializers, floats of at
// least 32 bits, and all types inferred by us. Each step has its own file.
#include <onnx/defs/schema.h>

#include <map>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/foreign/map_outputs.h"
#include "onnx_passes/functions/declaration.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/import/collect_sequences.h"
#include "onnx_passes/import/constants.h"
#include "onnx_passes/import/counted_loops.h"
#include "onnx_passes/import/decide_branches.h"
#include "onnx_passes/import/declared_shapes.h"
#include "onnx_passes/import/fix_inputs.h"
#include "onnx_passes/import/import.h"
#include "onnx_passes/import/import_message.h"
#include "onnx_passes/import/lost_layers.h"
#include "onnx_passes/import/newer_opset.h"
#include "onnx_passes/import/node_order.h"
#include "onnx_passes/import/rebatch.h"
#include "onnx_passes/import/resize_sizes.h"
#include "onnx_passes/import/sizes.h"
#include "onnx_passes/import/spectra.h"
#include "onnx_passes/import/unknown_operators.h"
#include "onnx_passes/import/unpack_sequence.h"
#include "onnx_passes/import/upgrade.h"
#include "onnx_passes/inference/check_types.h"
#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/widen.h"
#include "onnx_passes/quantization/import_qdq.h"
#include "onnx_passes/training/analysis.h"
#include "onnx_passes/training/batch_statistics.h"
#include "onnx_passes/weights/constant_weights.h"
#include "onnx_passes/weights/folded_parameters.h"
#include "onnx_passes/weights/weight_origin.h"

namespace onnx_train {
namespace {

constexpr int64_t kIrVersion = 10;        // of opset 21 and 22
constexpr int64_t kNewestIrVersion = 13;  // that ONNX Runtime 1.31 reads

template <typename F>
void for_each_graph(Graph* graph, const F& f) {
  f(graph);
  for (Node* node = graph->first(); node; node = node->next()) {
    for (const auto& subgraph : node->subgraphs()) for_each_graph(subgraph.graph.get(), f);
  }
}

void check_versions(const onnx::ModelProto& proto) {
  bool found = false;
  for (const auto& opset : proto.opset_import()) {
    if (!opset.domain().empty() && opset.domain() != "ai.onnx") continue;
    found = true;
    if (opset.version() > kNewestOpset) {
      fail("[Import] the model uses opset ", opset.version(), "; the newest that is supported is ", kNewestOpset,
           ": export it with opset ", kBaseOpset, " to ", kWrittenOpset);
    }
  }
  if (!found) fail("[Import] the model does not say which ONNX opset it uses");
}

// ---- On the graph: one form for what exporters write in several ways

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

// Declares the functions of ours that a forward model, or a loss, calls, in the model's opset.
void declare_kept_calls(Model* model) {
  model->context->functions.erase_if([](const auto& f) { return keeps_its_calls(f->domain(), f->name()); });
  for_each_graph(model->graph.get(), [](Graph* graph) {
    for (const Node* node = graph->first(); node; node = node->next()) {
      if (keeps_its_calls(node->domain(), node->op())) declare_function(*node);
    }
  });
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

// Checks the type without copying the weight.
bool may_be_integer(const Node& node) {
  if (!node.is("Constant") || !node.output()) return false;
  const auto* value = node.find_attr("value");
  return !value || !is_float(static_cast<DType>(value->t().data_type()));
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

// ---- Node by node, with the types of each node's inputs

// Collects changes of the model that the user should know.
struct Notes {
  std::vector<Finding>* findings;  // null: not wanted

  void add(const std::string& subject, const std::string& what, const std::string& advice) const {
    if (findings) findings->push_back({subject, what, advice});
  }
};

// Holds every node to its operator's shape contract; throws Error as check_shapes does.
void check_nodes(Graph* graph) {
  for (const Node* node = graph->first(); node; node = node->next()) check_shapes(*node);
}

// What happened to nodes.
struct Settled {
  bool folded = false;                 // some are gone
  std::map<std::string, int> foreign;  // operators of other domains that are standard ones now
};

// Converts the graph's nodes from opset `from` to the opset that is written, and infers their types. Rewrites that need
// these types happen on the way: parts of sequences are unpacked, and an If is replaced by the branch it takes.
void settle(Graph* graph, int64_t from, const Notes& notes, Declarations* declared, Settled* settled) {
  Sequences sequences;
  for (Node* node = graph->first(); node;) {
    Node* const before = node->previous();
    const auto again = [&] { return before ? before->next() : graph->first(); };
    std::string branch;
    if (const std::string label = node->label(); fold_branch(node, &branch)) {
      notes.add(label, concat("always takes its ", branch), "the branch stands in its place; the other one is gone");
      settled->folded = true;
      node = again();
      continue;
    }
    for (const auto& subgraph : node->subgraphs()) {
      settle(subgraph.graph.get(), from, notes, declared, settled);
      forget_types(subgraph.graph.get());  // they were inferred without the types of the subgraph's inputs
      declared->seed(*subgraph.graph);
    }
    Node* const after = node->next();
    if (const std::string op = node->op(); rewrite_foreign(node)) {  // as nodes of the opset that is written
      ++settled->foreign[op];
      node = after;
      continue;
    }
    node = upgrade(node, from);
    check_shapes(*node);
    check_types(node);
    infer_types(node);
    declared->refine(*node);
    Node* const next = node->next();
    node = sequences.unpack(node) ? next : rewrite_for_written_opset(node) ? again() : next;
  }
  settled->folded = settled->folded || sequences.found();
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 3;
  return first_few(names, kMaxShown, [](const std::string& name) { return concat("'", name, "'"); });
}

void note_foreign(const std::map<std::string, int>& foreign, const Notes& notes) {
  int count = 0;
  std::vector<std::string> names;
  for (const auto& [op, nodes] : foreign) {
    names.push_back(op);
    count += nodes;
  }
  if (count > 0)
    notes.add("operators of other domains", concat(count, count == 1 ? " node: " : " nodes: ", list_of(names)),
              "standard operators stand in their place");
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

void check_declarations(const Declarations& declared, const Graph& graph, bool fix_shapes, const Notes& notes) {
  const std::vector<Contradiction> wrong = declared.of_interface(graph);
  if (!wrong.empty() && !fix_shapes)
    fail("[Import] ", describe(wrong), "; correct the declaration in the file, or let it be dropped: --fix-shapes");
  for (const Contradiction& c : wrong)
    notes.add(c.what, concat("declared as ", to_string(c.declared)), concat("it is ", to_string(c.found)));
  const std::vector<Contradiction> stale = declared.of_intermediates(graph);
  if (!stale.empty())
    notes.add("declared types", describe({stale[0]}), "types are inferred; what the file says is not used");
}

void set_versions(Model* model) {
  auto& shell = model->shell();
  if (model->context->opset() <= 22 || shell.ir_version() < kIrVersion) shell.set_ir_version(kIrVersion);
  if (shell.ir_version() > kNewestIrVersion) shell.set_ir_version(kNewestIrVersion);
}

// All rewrites of the message: afterwards it has no functions and no sparse tensors, and its nodes are ordered.
ModelMessage prepared(ModelMessage message, const Notes& notes) {
  check_versions(message.proto);
  keep_origins(&message.proto);
  if (message.proto.training_info_size() > 0) {  // a training model is rebuilt from its inference graph
    message = to_message(strip_training(from_message(std::move(message))));
  }
  densify(&message.proto);
  if (const int64_t count = widen_four_bits(&message.proto); count > 0)
    notes.add("integers of 4 bits", concat(count, count == 1 ? " tensor has" : " tensors have", " 8 bits now"),
              "their values are what they were");
  expect_defined_names(message.proto.graph());
  if (sort_nodes(&message.proto)) notes.add("nodes", "were not in topological order", "they are now");
  inline_functions(&message.proto);
  return message;
}

// Brings what exporters write in several ways into one form.
void normalize(Model* model, const Notes& notes) {
  Graph* graph = model->graph.get();
  for_each_graph(graph, own_outputs);
  for_each_graph(graph, normalize_nodes);
  for_each_graph(graph, verify_nodes);
  for_each_graph(graph, forget_types);
  for_each_graph(graph, sort_constants);
  if (const int64_t count = widen(model); count > 0)
    notes.add("16-bit floats", concat(count, count == 1 ? " tensor is" : " tensors are", " widened to float32"),
              "training keeps weights in float32; export --original-types narrows them again");
}

// What is quantized trains straight through; stored integer weights that `train` names get a float master.
void import_quantization(Model* model, const std::vector<std::string>& train, const Notes& notes) {
  if (const int64_t pairs = fuse_quantization(model->graph.get()); pairs > 0)
    notes.add("quantization", concat(pairs, pairs == 1 ? " pair" : " pairs", " of QuantizeLinear and DequantizeLinear"),
              "trained straight through: rounding counts as the identity, what is clipped has no gradient");
  const std::vector<std::string> made = make_float_masters(model, train);
  if (!made.empty())
    notes.add(concat(made.size(), made.size() == 1 ? " stored weight" : " stored weights"),
              concat("integers that --train names: ", list_of(made)), "float now, rounded in every step");
  std::vector<std::string> stored;
  for (const Value* value : quantized_weights(*model->graph)) stored.push_back(master_name(*value));
  if (!stored.empty())
    notes.add(concat(stored.size(), stored.size() == 1 ? " stored weight" : " stored weights"),
              concat("integers: ", list_of(stored)), "frozen; --train NAME trains one alone, rounded in every step");
}

// Moves weights to the main graph's initializers.
void collect_weights(Model* model, const Notes& notes) {
  Graph* graph = model->graph.get();
  remove_idle_casts(graph);
  read_initializers_directly(graph);
  std::vector<std::string> lifted = lift_weights(model);
  const std::vector<std::string> restored = restore_linear_weights(graph);
  if (!restored.empty())
    notes.add(concat(restored.size(), restored.size() == 1 ? " weight" : " weights"),
              concat("stored transposed by PyTorch's exporter: ", list_of(restored)),
              "have the module's names and shapes again, transposed in the graph");
  for (const Finding& f : restore_folded_parameters(graph)) notes.add(f.subject, f.what, f.advice);
  for (const Value* value : graph->initializers()) {
    if (const std::vector<std::string> sources = original_names(*value); !sources.empty())
      notes.add(value->name(), concat("folded from ", list_of(sources)),
                "--train, --freeze find it by these names, too");
  }
  record_original_types(model);
  mark_constants(model);
  const auto constants = constants_of(*model);
  std::erase_if(lifted, [&](const std::string& name) { return constants.count(name) > 0; });
  if (!lifted.empty())
    notes.add(concat(lifted.size(), lifted.size() == 1 ? " weight" : " weights"),
              concat("constants of the graph: ", list_of(lifted)), "they are initializers now, and can be trained");
}

}  // namespace

Model import_model(ModelMessage message, const ImportOptions& options, std::vector<Finding>* findings) {
  const Notes notes{findings};
  const bool from_training = message.proto.training_info_size() > 0;
  Model model = from_message(prepared(std::move(message), notes));
  if (from_training) model.set_metadata(kFromTraining, "1");
  Graph* graph = model.graph.get();
  if (graph->outputs().empty()) fail("[Import] the model has no outputs");
  for (const Finding& f : choose_outputs(&model, options.adapt.cut)) notes.add(f.subject, f.what, f.advice);
  const Sizes sizes = parse_sizes(options.dims);
  Declarations declared(graph, sizes, /*trust_shapes=*/!options.fix_shapes);
  fix_inputs(graph, options.set);
  drop_inputs_with_values(graph);
  name_dimensions(graph);
  fix_dimensions(graph, sizes);
  normalize(&model, notes);
  const Marks<Node> silent = add_statistics_outputs(graph);
  model.context->functions.erase_if([](const auto&) { return true; });  // their calls are inlined
  declare_kept_calls(&model);
  expect_known_operators(*graph, /*inside=*/false);
  const int64_t from = raise_opset(&model);
  Settled settled;
  settle(graph, from, notes, &declared, &settled);
  note_foreign(settled.foreign, notes);
  decide_branches(graph, declared, [&](const std::string& node, const std::string& branch, const std::string& misfit) {
    notes.add(node, concat("takes its ", branch, ": the other one does not fit ", misfit), "sizes that need it fail");
    settled.folded = true;
  });
  if (collect_sequences(graph)) {
    infer_types(graph);
    settled.folded = true;
  }
  replace_counted_loops(graph, [&](const std::string& node) {
    notes.add(node, "runs steps that keep the shapes of what it carries", "it is a Scan over their numbers now");
  });
  replace_spectra(&model, [&](const std::string& node) {
    notes.add(node, "is a product with cosines and sines now",
              "or a constant, so that it has their gradients and kernels");
  });
  for (const Finding& f : settle_resize_scales(&model)) notes.add(f.subject, f.what, f.advice);
  expect_known_operators(*graph, /*inside=*/true);
  if (settled.folded || !options.set.empty()) remove_unread(graph);
  import_quantization(&model, options.train, notes);
  collect_weights(&model, notes);
  check_declarations(declared, *graph, options.fix_shapes, notes);
  declared.record(&model);
  for_each_graph(graph, check_nodes);
  lower_opset(&model);
  declare_kept_calls(&model);
  replace_batch_statistics(&model, silent, findings);
  for_each_graph(graph, rename_shadows);
  for_each_graph(graph, name_nodes);
  for_each_graph(graph, verify_nodes);
  if (!options.batch.empty()) rebatch(&model, options.batch);
  set_versions(&model);
  return model;
}

Model import_model(onnx::ModelProto proto, const ImportOptions& options, std::vector<Finding>* findings) {
  return import_model(ModelMessage{std::move(proto), {}}, options, findings);
}

}  // namespace onnx_train
