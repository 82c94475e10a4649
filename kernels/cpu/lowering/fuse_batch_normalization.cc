// Batch normalization takes over what follows it, Relu or Add and Relu, and in training its gradient the gradient of
// Relu: an activation is read and written once. The mask of Relu comes from its output. Where mixed precision rounds in
// between, it is the Rounded form.
#include <algorithm>
#include <set>
#include <string>

#include "kernels/cpu/lowering/lowering.h"
#include "kernels/cpu/lowering/widened.h"
#include "kernels/lowering/readers.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train::cpu {
namespace {

// Where the nodes of a graph stand.
class Places {
 public:
  explicit Places(const Graph& graph) {
    int place = 0;
    for (const Node* node = graph.first(); node; node = node->next()) places_[node] = place++;
  }
  bool is_before(const Value* value, const Node* node) const {
    return !value->producer() || places_.at(value->producer()) < places_.at(node);
  }
  // `node` is new and stands just before `other`, which is to go.
  void add(const Node* node, const Node* other) { places_[node] = places_.at(other); }

 private:
  NodeTable<int> places_;
};

bool has_kernels(const TensorType& type) {
  return type.is_static() && (type.dtype == DType::kFloat || type.dtype == DType::kDouble);
}

// What `value` was before it was rounded to bfloat16 and widened again; null when it was not.
Value* before_rounding(const Value* value) {
  const Value* narrow = widened_from(value);
  const Node* rounding = narrow ? narrow->producer() : nullptr;
  return rounding && rounding->is("Cast") && rounding->input(0)->dtype() == DType::kFloat ? rounding->input(0)
                                                                                          : nullptr;
}

// The node that makes `value`, before rounding if `rounded`; null when anybody else reads what is between.
Node* producer_read_once(const Value* value, bool rounded) {
  if (!is_read_once(value)) return nullptr;
  if (!rounded) return value->producer();
  const Value* exact = before_rounding(value);
  return exact && is_read_once(widened_from(value)) && is_read_once(exact) ? exact->producer() : nullptr;
}

// ONNX's own form of training, which has more outputs.
bool is_training(const Node& node) { return node.attr("training_mode", 0) != 0 || node.num_outputs() > 1; }

// The batch normalization that makes `value` and nothing else reads.
Node* normalization_before(Value* value, const TensorType& type, bool rounded) {
  Node* node = producer_read_once(value, rounded);
  const bool is_normalization =
      node && (node->is("BatchNormalizationTrain", kDomain) || (node->is("BatchNormalization") && !is_training(*node)));
  const bool fits = is_normalization && value->type() == type &&
                    node->output(0) == (rounded ? before_rounding(value) : value) && has_kernels(type);
  return fits ? node : nullptr;
}

Attrs epsilon_of(const Node& node) {
  return node.has_attr("epsilon") ? Attrs{{"epsilon", node.attr("epsilon", 0.0f)}} : Attrs{};
}

void replace_outputs(Node* node, const std::vector<Var>& with) {
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (node->output(i)) node->graph().replace(node->output(i), with[static_cast<size_t>(i)].value());
  }
}

bool is_read(const Node& node) {
  const auto used = [&](const Value* v) { return v && (!v->uses().empty() || node.graph().is_output(v)); };
  return std::any_of(node.outputs().begin(), node.outputs().end(), used);
}

// The node goes when nobody reads it, and with it what only it has read.
void remove_unread(Node* last) {
  std::set<Node*> nodes = {last};
  while (!nodes.empty()) {
    Node* node = nodes.extract(nodes.begin()).value();
    if (is_read(*node)) continue;
    for (const Value* input : node->inputs()) {
      if (input && input->producer()) nodes.insert(input->producer());
    }
    node->graph().remove(node);
  }
}

// y = relu(normalization + residual), without residual where there is none
void join(Node* normalization, Value* residual, Node* relu, bool rounded, Places& places) {
  Graph& graph = relu->graph();
  Builder b(&graph, normalization);
  b.set_name(relu->output()->name());
  std::vector<Var> inputs;
  for (Value* input : normalization->inputs()) inputs.push_back(b.var(input));
  if (residual) inputs.push_back(b.var(residual));
  const bool trains = normalization->is("BatchNormalizationTrain", kDomain);
  const std::string op = std::string(rounded ? "Rounded" : "") + "BatchNormalization" + (residual ? "AddRelu" : "Relu");
  const std::vector<Var> outputs =
      call(b, op + (trains ? "Train" : ""), trains ? 3 : 1, inputs, epsilon_of(*normalization));
  places.add(outputs[0].value()->producer(), normalization);
  graph.replace(relu->output(), outputs[0].value());
  for (int i = 1; i < normalization->num_outputs(); ++i) {
    if (normalization->output(i)) graph.replace(normalization->output(i), outputs[static_cast<size_t>(i)].value());
  }
  remove_unread(relu);
}

bool join_forward(Node* relu, Places& places) {
  if (!relu->is("Relu")) return false;
  Value* x = relu->input(0);
  const TensorType type = x->type();
  const bool rounded = before_rounding(x);
  if (Node* normalization = normalization_before(x, type, rounded)) {
    join(normalization, nullptr, relu, rounded, places);
    return true;
  }
  Node* sum = producer_read_once(x, rounded);
  if (!sum || !sum->is("Add")) return false;
  for (int i = 0; i < 2; ++i) {
    Value* residual = sum->input(1 - i);
    Node* normalization = normalization_before(sum->input(i), type, rounded);
    if (!normalization || residual->type() != type || !places.is_before(residual, normalization)) continue;
    join(normalization, residual, relu, rounded, places);
    return true;
  }
  return false;
}

// The gradient of Relu that makes `dz`. Rounding what it makes of rounded numbers changes nothing.
Node* rectification_before(const Value* dz) {
  const Value* exact = before_rounding(dz);
  Node* relu = exact ? exact->producer() : dz->producer();
  if (!relu || !relu->is("ReluGrad", kDomain) || (exact && !holds_bfloat16(relu->input(0)))) return nullptr;
  const bool fits = has_kernels(dz->type()) && relu->input(0)->type() == dz->type() &&
                    relu->input(1)->type() == dz->type() && relu->output()->type() == dz->type();
  return fits ? relu : nullptr;
}

// The joint gradient stands where that of Relu stood: all else it reads must be there by then.
bool join_backward(Node* gradient, Places& places) {
  if (!gradient->is("BatchNormalizationGrad", kDomain) || !gradient->output(0)) return false;
  Value* dz = gradient->input(4);
  Node* relu = rectification_before(dz);
  if (!relu) return false;
  for (int i = 0; i < 4; ++i) {
    if (!places.is_before(gradient->input(i), relu)) return false;
  }
  Graph& graph = relu->graph();
  Builder b(&graph, relu);
  b.set_name(gradient->output(0)->name());
  std::vector<Var> inputs;
  for (int i = 0; i < 4; ++i) inputs.push_back(b.var(gradient->input(i)));
  for (Value* input : relu->inputs()) inputs.push_back(b.var(input));
  const int num_outputs = producer_read_once(dz, dz != relu->output()) ? 3 : 4;
  const std::vector<Var> outputs = call(b, "BatchNormalizationReluGrad", num_outputs, inputs, epsilon_of(*gradient));
  places.add(outputs[0].value()->producer(), relu);
  replace_outputs(gradient, outputs);
  if (num_outputs == 4) {
    graph.replace(relu->output(), outputs[3].value());
    graph.remove(relu);
  }
  remove_unread(gradient);
  return true;
}

}  // namespace

bool fuse_batch_normalization(Model& model) {
  bool changed = false;
  for (auto* rewrite : {join_forward, join_backward}) {
    Places places(*model.graph);
    Node* next = nullptr;
    for (Node* node = model.graph->first(); node; node = next) {
      next = node->next();
      changed = rewrite(node, places) || changed;
    }
  }
  return changed;
}

}  // namespace onnx_train::cpu
