#include "onnx_passes/foreign/missing.h"

#include <onnx/defs/schema.h>

#include <algorithm>
#include <set>
#include <utility>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

bool is_spectral(const std::string& op) { return op == "STFT" || op == "DFT" || op == "MelWeightMatrix"; }

// Operators and functions of the node's domain whose names are like its own: "'Tanh'"; "" if there are none.
std::string similar_operators(const Node& node) {
  std::set<std::string> names;
  for (const auto& schema : onnx::OpSchemaRegistry::get_all_schemas()) {
    if (schema.domain() == node.domain()) names.insert(schema.Name());
  }
  for (const auto& function : node.graph().context().functions) {
    if (function->domain() == node.domain()) names.insert(function->name());
  }
  if (names.count(node.op())) return "";  // another opset has it
  return similar_names(node.op(), {names.begin(), names.end()});
}

std::string unknown_operator_advice(const Node& node) {
  const std::string& domain = node.domain();
  if (const std::string refusal = refusal_of_foreign(node); !refusal.empty()) return refusal;
  const std::string similar = similar_operators(node), meant = concat("did you mean ", similar, "?");
  if (!similar.empty() && !domain.empty()) return meant;
  if (domain == "com.microsoft")
    return "ONNX Runtime's optimizer writes such operators; export without its fusions (in Optimum: no -O level)";
  if (domain == "ai.onnx.ml") {
    return "that domain is of classical machine learning (scikit-learn, LightGBM); write the model in ONNX's standard "
           "operators, such as Gemm and Softmax";
  }
  if (domain.empty()) {
    return concat("opset ", node.graph().context().opset(), " does not have it; ",
                  similar.empty() ? "export with another opset" : meant);
  }
  return "give the model a local function of that name, or export the operator as standard ones";
}

// What the condition of an If is computed from.
struct Sources {
  std::set<std::string> sizes;   // dimensions of inputs without a fixed size, if the condition asks for a shape
  std::set<std::string> inputs;  // inputs whose contents it depends on
};

void add_sizes(const Value& value, Sources* sources) {
  for (const Dim& dim : value.has_rank() ? *value.type().dims : Dims()) {
    if (!dim.symbol().empty()) sources->sizes.insert(dim.symbol());
  }
}

const Graph& outermost(const Graph& graph) { return graph.parent() ? outermost(*graph.parent()) : graph; }

// All sizes that are open but those of batches, which come first.
void add_sizes_of_inputs(const Graph& graph, Sources* sources) {
  for (const Value* input : graph.inputs()) {
    const Dims dims = input->has_rank() ? *input->type().dims : Dims();
    for (size_t i = 1; i < dims.size(); ++i) {
      if (!dims[i].symbol().empty()) sources->sizes.insert(dims[i].symbol());
    }
  }
}

Sources sources_of(const Value* condition) {
  constexpr size_t kMost = 1000;  // values to look at
  Sources sources;
  std::vector<const Value*> pending = {condition};
  std::set<const Value*> seen;
  while (!pending.empty() && seen.size() < kMost) {
    const Value* value = pending.back();
    pending.pop_back();
    if (!value || !seen.insert(value).second) continue;
    const Node* node = value->producer();
    if (!node) {
      if (value->graph().is_input(value)) sources.inputs.insert(value->name());
    } else if (reads_shape_only(*node)) {
      if (node->input(0)->graph().is_input(node->input(0))) {
        add_sizes(*node->input(0), &sources);
      } else {
        add_sizes_of_inputs(outermost(node->graph()), &sources);
      }
    } else {
      pending.insert(pending.end(), node->inputs().begin(), node->inputs().end());
    }
  }
  return sources;
}

}  // namespace

bool computes_in_integers(const Node& node) {
  return node.domain().empty() && (node.op().starts_with("QLinear") || node.op().ends_with("Integer"));
}

std::string way_to_decide(const Node& branch) {
  const Sources sources = sources_of(branch.input(0));
  std::string text;
  for (const std::string& name : sources.sizes) text += concat(text.empty() ? "" : " ", "--dim ", name, "=N");
  if (!text.empty()) return concat("its condition depends on sizes: give them (", text, ")");
  for (const std::string& name : sources.inputs) text += concat(text.empty() ? "" : " ", "--set ", name, "=VALUE");
  if (!text.empty())
    return concat("its condition depends on inputs: if they only select, give their values (", text, ")");
  return "its condition is computed from data: export the model with one of its branches";
}

std::string replacement_advice(const Node& node) {
  const std::string& op = node.op();
  if (!is_known_operator(node)) return unknown_operator_advice(node);
  if (computes_in_integers(node) || contains(op, "QuantizeLinear"))
    return "this is a quantized model; take the float model that it was made from, or export it in the form QDQ";
  if (contains(op, "Sequence")) {
    return "export the model without sequences of tensors: a fixed number of tensors is stacked by Unsqueeze and "
           "Concat, and taken apart by Split or Gather";
  }
  if (op == "Loop") {
    return "a Loop runs here if what it carries keeps its shape from step to step, and its condition depends on no "
           "random numbers; stack results of one shape in place of a value that grows, or export the model with the "
           "loop unrolled";
  }
  if (op == "Scan") return "export the model with the loop unrolled";
  if (op == "If") return way_to_decide(node);
  if (is_spectral(op)) return "compute the spectrum before the model, and export the layers after it";
  return "compute it outside of the model, or write it in other standard operators";
}

std::string unknown_rank_advice(const Value& value) {
  const Value* lost = &value;
  for (bool moved = true; moved && lost->producer();) {
    moved = false;
    for (const Value* input : lost->producer()->inputs()) {
      if (!input || input->has_rank()) continue;
      lost = input;
      moved = true;
      break;
    }
  }
  const Node* node = lost->producer();
  if (!node) return concat("give the input '", lost->name(), "' a shape in the file");
  const std::string advice = node->is("If") || lost->dtype() == DType::kUndefined
                                 ? replacement_advice(*node)
                                 : concat("give '", lost->name(), "' a shape in the file (value_info)");
  return concat("it is lost at ", node->label(), ": ", advice);
}

std::string list_operators(const std::vector<const Node*>& nodes) {
  std::vector<std::pair<const Node*, int>> operators;  // the first node of each, and how many there are
  for (const Node* node : nodes) {
    const auto same = std::find_if(operators.begin(), operators.end(), [&](const auto& known) {
      return known.first->op() == node->op() && known.first->domain() == node->domain();
    });
    if (same == operators.end()) {
      operators.emplace_back(node, 1);
    } else {
      ++same->second;
    }
  }
  std::string text = operators.size() == 1 ? "operator " : "operators ";
  for (size_t i = 0; i < operators.size(); ++i) {
    const auto& [node, count] = operators[i];
    std::string place = node->label();
    place.erase(place.rfind(" ("));  // the operator is named before
    text += concat(i == 0 ? "" : i + 1 == operators.size() ? " and " : ", ", node->op());
    if (!node->domain().empty()) text += " of domain " + node->domain();
    text += count == 1 ? concat(" (", place, ")") : concat(" (", count, " nodes, the first is ", place, ")");
  }
  return text;
}

}  // namespace onnx_train
