// Imports a forward model from any exporter into the form that other passes expect: opset 21 to 26, no functions, named
// nodes in topological order, no weights among the inputs, weights and integer constants as initializers, floats of at
// least 32 bits, and all types inferred by us. Each step has its own file.
#include <map>
#include <memory>
#include <optional>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/foreign/map_outputs.h"
#include "onnx_passes/functions/declaration.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/import/counted_loops.h"
#include "onnx_passes/import/decide_branches.h"
#include "onnx_passes/import/declared_shapes.h"
#include "onnx_passes/import/fix_inputs.h"
#include "onnx_passes/import/import.h"
#include "onnx_passes/import/import_message.h"
#include "onnx_passes/import/import_steps.h"
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
#include "onnx_passes/model/analysis.h"
#include "onnx_passes/model/batch_statistics.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/precision/widen.h"
#include "onnx_passes/quantization/import_qdq.h"
#include "onnx_passes/training/strip_training.h"
#include "onnx_passes/weights/constant_weights.h"
#include "onnx_passes/weights/folded_parameters.h"

namespace onnx_train {
namespace {

constexpr int64_t kIrVersion = 10;        // of opset 21 and 22
constexpr int64_t kNewestIrVersion = 13;  // that ONNX Runtime 1.31 reads

void check_versions(const onnx::ModelProto& proto) {
  bool found = false;
  for (const auto& opset : proto.opset_import()) {
    if (!opset.domain().empty() && opset.domain() != "ai.onnx") continue;
    found = true;
    if (opset.version() > kNewestOpset) {
      fail_as(ErrorCode::kOpset, "[Import] the model uses opset ", opset.version(),
              "; the newest that is supported is ", kNewestOpset, ": export it with opset ", kBaseOpset, " to ",
              kWrittenOpset);
    }
  }
  if (!found) fail_as(ErrorCode::kOpset, "[Import] the model does not say which ONNX opset it uses");
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
  int rounded_products = 0;            // of these, products whose other operand ONNX Runtime rounds to 8 bits
};

// MatMulNBits says how exactly it may be computed: with 4, in integers of 8 bits.
bool is_rounded_product(const Node& node) {
  constexpr int64_t kIntegers = 4;
  return node.is("MatMulNBits", "com.microsoft") && node.attr("accuracy_level", 0) == kIntegers;
}

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
    const bool rounds = is_rounded_product(*node);
    if (const std::string op = node->op(); rewrite_foreign(node)) {  // as nodes of the opset that is written
      ++settled->foreign[op];
      settled->rounded_products += rounds ? 1 : 0;
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

void note_foreign(const Settled& settled, const Notes& notes) {
  int count = 0;
  std::vector<std::string> names;
  for (const auto& [op, nodes] : settled.foreign) {
    names.push_back(op);
    count += nodes;
  }
  if (count > 0)
    notes.add("operators of other domains", concat(count, count == 1 ? " node: " : " nodes: ", list_of(names)),
              "standard operators stand in their place");
  if (settled.rounded_products > 0)
    notes.add(
        "accuracy_level 4", concat("of ", settled.rounded_products, " MatMulNBits"),
        "ONNX Runtime rounds what they multiply to 8 bits; here it stays in floats, so that its numbers differ from "
        "these (GenAI's builder: --extra_options accuracy_level=1)");
}

void check_declarations(const Declarations& declared, const Graph& graph, bool fix_shapes, const Notes& notes) {
  const std::vector<Contradiction> wrong = declared.of_interface(graph);
  if (!wrong.empty() && !fix_shapes)
    fail_as(ErrorCode::kWrongDeclaration, "[Import] ", describe(wrong),
            "; correct the declaration in the file, or let it be dropped: --fix-shapes");
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
  if (const int64_t count = widen_four_bits(&message); count > 0)
    notes.add("integers of 4 bits", concat(count, count == 1 ? " tensor has" : " tensors have", " 8 bits now"),
              "their values are what they were; weights that do not train keep 4 bits in the training model");
  expect_defined_names(message.proto.graph());
  if (sort_nodes(&message.proto)) notes.add("nodes", "were not in topological order", "they are now");
  inline_functions(&message.proto);
  return message;
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

// ---- The steps

// What the steps of an import tell each other beyond the model. A step that runs alone finds what an import begins
// with.
struct Import {
  Import(const ImportOptions& given, std::vector<Finding>* findings) : options(given), notes{findings} {}

  Declarations& declarations(Model& model) {
    if (!declared) declared.emplace(model.graph.get(), sizes, /*trust_shapes=*/!options.fix_shapes);
    return *declared;
  }

  const ImportOptions options;
  const Notes notes;
  const Sizes sizes = parse_sizes(options.dims);
  std::optional<Declarations> declared;
  Marks<Node> silent;
  Settled settled;
};

void choose_noted_outputs(Model& model, Import& state) {
  for (const Finding& f : choose_outputs(&model, state.options.adapt.cut)) state.notes.add(f.subject, f.what, f.advice);
}

void choose_noted_branches(Model& model, Import& state) {
  for (const std::string& setting : choose_branches_without_cache(model.graph.get())) {
    const size_t equals = setting.find('=');
    const char* const other = setting.substr(equals) == "=false" ? "=true" : "=false";
    state.notes.add(setting, "chooses the branch without a cache of earlier keys and values",
                    concat("the other one is gone; --set ", setting.substr(0, equals), other, " takes that"));
    state.settled.folded = true;
  }
}

void widen_noted(Model& model, Import& state) {
  if (const int64_t count = widen(&model); count > 0)
    state.notes.add(
        "16-bit floats", concat(count, count == 1 ? " tensor is" : " tensors are", " widened to float32"),
        "weights that do not train keep 16 bits in the training model; export --original-types narrows all again");
}

void settle_all(Model& model, Import& state) {
  const int64_t from = raise_opset(&model);
  settle(model.graph.get(), from, state.notes, &state.declarations(model), &state.settled);
  note_foreign(state.settled, state.notes);
}

void decide_noted_branches(Model& model, Import& state) {
  decide_branches(model.graph.get(), state.declarations(model),
                  [&](const std::string& node, const std::string& branch, const std::string& misfit) {
                    state.notes.add(node, concat("takes its ", branch, ": the other one does not fit ", misfit),
                                    "sizes that need it fail");
                    state.settled.folded = true;
                  });
}

void collect_settled_sequences(Model& model, Import& state) {
  if (!collect_sequences(model.graph.get())) return;
  infer_types(model.graph.get());
  state.settled.folded = true;
}

void replace_noted_loops(Model& model, Import& state) {
  replace_counted_loops(model.graph.get(), [&](const std::string& node) {
    state.notes.add(node, "runs steps that keep the shapes of what it carries", "it is a Scan over their numbers now");
  });
}

void replace_noted_spectra(Model& model, Import& state) {
  replace_spectra(&model, [&](const std::string& node) {
    state.notes.add(node, "is a product with cosines and sines now",
                    "or a constant, so that it has their gradients and kernels");
  });
}

void settle_noted_scales(Model& model, Import& state) {
  for (const Finding& f : settle_resize_scales(&model)) state.notes.add(f.subject, f.what, f.advice);
}

void record_declarations(Model& model, Import& state) {
  Declarations& declared = state.declarations(model);
  check_declarations(declared, *model.graph, state.options.fix_shapes, state.notes);
  declared.record(&model);
}

void remove_settled(Model& model, Import& state) {
  if (state.settled.folded || !state.options.set.empty()) remove_unread(model.graph.get());
}

template <void (*step)(Graph*)>
void in_each_graph(Model& model, Import&) {
  for_each_graph(model.graph.get(), step);
}

struct ImportStep {
  const char* name;
  const char* what;
  void (*run)(Model&, Import&);
};

const ImportStep kImportSteps[] = {
    {"choose_outputs", "leaves out outputs that cannot be trained on", choose_noted_outputs},
    {"read_declarations", "reads the types that the file declares", [](Model& m, Import& i) { i.declarations(m); }},
    {"fix_inputs", "makes constants of the inputs of --set",
     [](Model& m, Import& i) { fix_inputs(m.graph.get(), i.options.set); }},
    {"choose_branches_without_cache", "takes the branch that reads no cache where an input chooses",
     choose_noted_branches},
    {"drop_inputs_with_values", "takes weights off the list of inputs",
     [](Model& m, Import&) { drop_inputs_with_values(m.graph.get()); }},
    {"name_dimensions", "names dimensions without a size", [](Model& m, Import&) { name_dimensions(m.graph.get()); }},
    {"fix_dimensions", "gives dimensions the sizes of --dim",
     [](Model& m, Import& i) { fix_dimensions(m.graph.get(), i.sizes); }},
    {"own_outputs", "makes every output of a subgraph a node's", in_each_graph<own_outputs>},
    {"normalize_nodes", "writes domains and defaults in one form", in_each_graph<normalize_nodes>},
    {"verify_nodes", "checks nodes against their schemas", in_each_graph<verify_nodes>},
    {"forget_types", "forgets types that can be inferred", in_each_graph<forget_types>},
    {"sort_constants", "makes initializers of integer constants", in_each_graph<sort_constants>},
    {"widen", "widens 16-bit floats to float32", widen_noted},
    {"add_statistics_outputs", "completes batch normalizations without running statistics",
     [](Model& m, Import& i) { i.silent = add_statistics_outputs(m.graph.get()); }},
    {"drop_inlined_functions", "removes functions, whose calls are inlined",
     [](Model& m, Import&) { m.context->functions.erase_if([](const auto&) { return true; }); }},
    {"declare_kept_calls", "declares the functions of ours that are called",
     [](Model& m, Import&) { declare_kept_calls(&m); }},
    {"expect_known_operators", "refuses unknown operators",
     [](Model& m, Import&) { expect_known_operators(*m.graph, /*inside=*/false); }},
    {"settle", "raises the opset, and infers types; folds known branches, unpacks sequences", settle_all},
    {"decide_branches", "folds an If of which one branch alone fits", decide_noted_branches},
    {"collect_sequences", "makes stacked results of sequences that loops append to", collect_settled_sequences},
    {"replace_counted_loops", "makes a Scan of a Loop", replace_noted_loops},
    {"replace_spectra", "makes products of Fourier transforms", replace_noted_spectra},
    {"settle_resize_scales", "gives Resize the scales that its sizes mean", settle_noted_scales},
    {"expect_known_inner_operators", "refuses unknown operators of subgraphs, too",
     [](Model& m, Import&) { expect_known_operators(*m.graph, /*inside=*/true); }},
    {"remove_unread", "removes what nothing reads since a branch was folded", remove_settled},
    {"import_quantization", "makes quantization trainable",
     [](Model& m, Import& i) { import_quantization(&m, i.options.train, i.notes); }},
    {"collect_weights", "makes initializers of constants that are weights",
     [](Model& m, Import& i) { collect_weights(&m, i.notes); }},
    {"record_declarations", "compares the types that the file declares, and keeps what only it says",
     record_declarations},
    {"check_shapes", "checks nodes against the shape contracts of their operators", in_each_graph<check_nodes>},
    {"lower_opset", "lowers the opset to one that is written", [](Model& m, Import&) { lower_opset(&m); }},
    {"declare_kept_calls", "", [](Model& m, Import&) { declare_kept_calls(&m); }},
    {"replace_batch_statistics", "writes out batch normalizations without running statistics",
     [](Model& m, Import& i) { replace_batch_statistics(&m, i.silent, i.notes.findings); }},
    {"rename_shadows", "renames values of subgraphs that have an outer value's name", in_each_graph<rename_shadows>},
    {"name_nodes", "names nodes without a name of their own", in_each_graph<name_nodes>},
    {"verify_nodes", "", in_each_graph<verify_nodes>},
    {"rebatch", "gives the batch the size of --batch",
     [](Model& m, Import& i) {
       if (!i.options.batch.empty()) rebatch(&m, i.options.batch);
     }},
    {"set_versions", "sets the version of the format", [](Model& m, Import&) { set_versions(&m); }},
};

}  // namespace

std::vector<PassRow> import_rows(const ImportOptions& options, std::vector<Finding>* findings) {
  const auto state = std::make_shared<Import>(options, findings);
  std::vector<PassRow> rows;
  for (const ImportStep& step : kImportSteps) {
    const auto run = [state, &step](Model& model) {
      step.run(model, *state);
      return true;
    };
    rows.push_back({{step.name, run, "import"}, step.what});
  }
  return rows;
}

Model import_model(ModelMessage message, const ImportOptions& options, std::vector<Finding>* findings,
                   const PipelineOptions& pipeline) {
  const bool from_training = message.proto.training_info_size() > 0;
  Model model = from_message(prepared(std::move(message), Notes{findings}));
  if (from_training) model.set_metadata(kFromTraining, "1");
  if (model.graph->outputs().empty()) fail("[Import] the model has no outputs");
  run_pipeline(wanted_passes(import_rows(options, findings)), &model, pipeline);
  return model;
}

Model import_model(ModelMessage message, const ImportOptions& options, std::vector<Finding>* findings) {
  return import_model(std::move(message), options, findings, {});
}

Model import_model(onnx::ModelProto proto, const ImportOptions& options, std::vector<Finding>* findings) {
  return import_model(ModelMessage{std::move(proto), {}}, options, findings);
}

}  // namespace onnx_train
