// One traversal of each graph, in order: a node with a known result becomes a constant, a node without effect is
// replaced by its input, and a node that repeats an earlier one is replaced by it. Then a reverse traversal removes
// dead nodes.
//
// Outputs keep their names. A state is never treated as a constant, although the file has a value for it.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/random.h"
#include "onnx_passes/recognize/simplify.h"
#include "onnx_passes/recognize/simplify_slices.h"

namespace onnx_train {
namespace {

using ValueSet = std::unordered_set<const Value*>;
using NodeTable = std::unordered_map<std::string, Node*>;

// Nodes with more bytes of attributes are constants too large to compare.
constexpr size_t kMaxKeyBytes = 4096;

// ---- Nodes without effect

bool is_identity_permutation(const Node& node) {
  const auto permutation = node.attr("perm", std::vector<int64_t>{});
  for (size_t i = 0; i < permutation.size(); ++i) {
    if (permutation[i] != static_cast<int64_t>(i)) return false;
  }
  return !permutation.empty();
}

bool is_dropout_at_rest(const Node& node) {
  if (!node.is("Dropout") || (node.output(1) && !node.output(1)->uses().empty())) return false;
  return !node.input(2) || constant_of(node.input(2)).holds_only(0);
}

// Whether the result of the node is its first input.
bool does_nothing(const Node& node) {
  if (node.is("RoundGradientTo", kDomain)) return true;  // it has no effect after gradients have been added
  if (!node.domain().empty() || !node.input(0) || !node.output()) return false;
  if (node.is("Identity")) return true;
  if (node.is("Cast")) return node.attr("to", 0) == static_cast<int>(node.input(0)->dtype());
  if (node.is("CastLike")) {
    const DType dtype = node.input(0)->dtype();
    return dtype != DType::kUndefined && dtype == node.output()->dtype();
  }
  if (node.is("Transpose")) return is_identity_permutation(node);
  if (node.is("Concat") || node.is("Sum") || node.is("Max") || node.is("Min") || node.is("Mean")) {
    return node.num_inputs() == 1;
  }
  if (node.is("Pad")) return constant_of(node.input(1)).holds_only(0) && !node.input(3);
  if (node.is("Slice")) {
    const bool forward = !node.input(4) || constant_of(node.input(4)).holds_only(1);
    return forward && same(node.input(0)->type(), node.output()->type());
  }
  // These change the shape, not the order of elements; if the shape stays, they have no effect.
  const bool keeps_order = operator_of(node).kind == OperatorKind::kView || node.is("Expand");
  return keeps_order && same(node.input(0)->type(), node.output()->type());
}

// ---- Repeated nodes

bool is_repeatable(const Node& node) { return !is_random(node) && !node.is("Dropout") && node.subgraphs().empty(); }

// A key that is equal for nodes that compute the same; empty for nodes that must not be merged.
std::string key_of(const Node& node) {
  if (!is_repeatable(node)) return "";
  std::string key = concat(node.domain(), '\n', node.op(), '\n', node.overload());
  std::vector<std::string> attributes;
  for (const auto& attribute : node.shell().attribute()) attributes.push_back(attribute.SerializeAsString());
  std::sort(attributes.begin(), attributes.end());
  for (const std::string& attribute : attributes) key += concat('\n', attribute.size(), '\n', attribute);
  if (key.size() > kMaxKeyBytes) return "";
  key += '\n';
  for (const Value* input : node.inputs()) {
    const auto address = reinterpret_cast<uintptr_t>(input);  // compared, never ordered
    key.append(reinterpret_cast<const char*>(&address), sizeof address);
  }
  return key;
}

// ---- The walk

class Simplifier {
 public:
  explicit Simplifier(Model* model) : model_(*model) {
    protect_outputs(*model_.graph);
    for (const EntryPoint& entry : model_.entry_points) {
      for (const auto* bindings : {&entry.update_bindings, &entry.initialization_bindings}) {
        for (const Binding& b : *bindings) {
          states_.insert(b.state);
          kept_.insert(b.next);
        }
      }
      for (const WeightGradient& g : entry.gradients) gradients_.insert(g.gradient);
      protect_outputs(*entry.algorithm);
      protect_outputs(*entry.initialization);
    }
    varying_ = states_;
  }

  bool run() {
    NodeTable shared;
    simplify(model_.graph.get(), nullptr, &shared);
    for (const EntryPoint& entry : model_.entry_points) {
      NodeTable own;
      simplify(entry.algorithm.get(), &shared, &own);
      own.clear();
      simplify(entry.initialization.get(), nullptr, &own);
    }
    // An algorithm reads the inference graph, so the dead nodes of algorithms are removed first.
    for (const EntryPoint& entry : model_.entry_points) {
      remove_dead(entry.algorithm.get());
      remove_dead(entry.initialization.get());
    }
    remove_dead(model_.graph.get());
    return changed_;
  }

 private:
  void protect_outputs(const Graph& graph) {
    kept_.insert(graph.outputs().begin(), graph.outputs().end());
    for (const Node* node = graph.first(); node; node = node->next()) {
      for (const auto& subgraph : node->subgraphs()) protect_outputs(*subgraph.graph);
    }
  }

  bool is_kept(const Value* value) const { return kept_.count(value) > 0 || gradients_.count(value) > 0; }
  bool is_kept(const Node& node) const {
    const auto& outputs = node.outputs();
    return std::any_of(outputs.begin(), outputs.end(), [&](const Value* v) { return v && is_kept(v); });
  }

  // `outer` holds the nodes of the inference graph, which an algorithm may reuse.
  void simplify(Graph* graph, const NodeTable* outer, NodeTable* own) {
    const bool is_algorithm = graph->parent() != nullptr;
    for (Node *node = graph->first(), *next = nullptr; node; node = next) {
      next = node->next();
      note_varying(*node);
      if (!is_kept(*node)) {
        // Dropout stays in the inference graph, because the model may be trained again.
        if (does_nothing(*node) || (is_algorithm && is_dropout_at_rest(*node))) {
          give_way(node, {node->input(0)});
          continue;
        }
        if (fold(node)) continue;
      }
      if (join(node)) continue;
      const std::string key = key_of(*node);
      if (key.empty()) continue;
      if (outer && merge(node, *outer, key)) continue;
      if (!merge(node, *own, key)) own->emplace(key, node);
    }
  }

  // Values computed from a state change from step to step; shapes do not.
  void note_varying(const Node& node) {
    if (node.domain().empty() && (node.op() == "Shape" || node.op() == "Size")) return;
    bool varies = false;
    for_each_input(node, [&](const Value* v) { varies = varies || varying_.count(v); });
    if (!varies) return;
    for (const Value* output : node.outputs()) varying_.insert(output);
  }

  bool fold(Node* node) {
    const Value* output = node->output();
    if (node->num_outputs() != 1 || !output || varying_.count(output) || node->is("Constant")) return false;
    if (!output->elements()) return false;
    const Tensor tensor = constant_of(output);
    if (tensor.empty()) return false;
    Builder b(&node->graph(), node);
    give_way(node, {b.constant(tensor).value()});
    return true;
  }

  // The sum may be the gradient of a weight.
  bool join(Node* node) {
    if (!node->is("Add") || kept_.count(node->output())) return false;
    Value* const sum = node->output();
    Value* const joined = join_slices(node, [&](const Value* v) { return varying_.count(v) > 0; });
    if (!joined) return false;
    Graph& graph = node->graph();
    const std::string name = sum->name();
    for (EntryPoint& entry : model_.entry_points) {
      for (WeightGradient& g : entry.gradients) {
        if (g.gradient == sum) g.gradient = joined;
      }
    }
    if (gradients_.erase(sum) > 0) gradients_.insert(joined);
    give_way(node, {joined});
    if (!graph.find(name)) graph.rename(joined, name);
    return true;
  }

  bool merge(Node* node, const NodeTable& table, const std::string& key) {
    const auto found = table.find(key);
    if (found == table.end() || is_kept(*node)) return false;
    Node* earlier = found->second;
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i) && !earlier->output(i)) return false;
    }
    give_way(node, earlier->outputs());
    return true;
  }

  void give_way(Node* node, const std::vector<Value*>& values) {
    for (int i = 0; i < node->num_outputs(); ++i) {
      Value* output = node->output(i);
      if (!output || output->uses().empty()) continue;
      Value* value = values[static_cast<size_t>(i)];
      if (value->type().dtype == output->dtype() && !value->has_rank()) value->set_type(output->type());
      node->graph().replace(output, value);
    }
    discard(node);
  }

  void discard(Node* node) {
    for (const Value* output : node->outputs()) varying_.erase(output);  // its address may be reused for another value
    node->graph().remove(node);
    changed_ = true;
  }

  void remove_dead(Graph* graph) {
    for (Node *node = graph->last(), *next = nullptr; node; node = next) {
      next = node->previous();
      const auto& outputs = node->outputs();
      const bool used =
          std::any_of(outputs.begin(), outputs.end(), [](const Value* v) { return v && !v->uses().empty(); });
      if (used || is_kept(*node)) continue;
      discard(node);
    }
    std::vector<Value*> bound;
    for (Value* value : graph->initializers()) {
      if (states_.count(value) || is_kept(value)) bound.push_back(value);
    }
    Node* binding = graph->add_node("", bound, {});  // a temporary reader of the values that bindings name
    changed_ = graph->remove_unused_initializers() || changed_;
    graph->remove(binding);
  }

  Model& model_;
  ValueSet states_;
  ValueSet kept_;       // outputs, and values that bindings name
  ValueSet gradients_;  // of weights, which entry points name
  ValueSet varying_;    // states, and values computed from them
  bool changed_ = false;
};

}  // namespace

bool simplify(Model& model) {
  for (EntryPoint& entry : model.entry_points) entry.training_versions.clear();
  return Simplifier(&model).run();
}

}  // namespace onnx_train
