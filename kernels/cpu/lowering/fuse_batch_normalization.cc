// Batch normalization in training takes over what follows it, Relu or Add and Relu, and its gradient the gradient of
// Relu: an activation is read and written once. The mask of Relu comes from its output.
#include <string>
#include <unordered_map>

#include "kernels/cpu/lowering/lowering.h"
#include "onnx_passes/functions/functions.h"

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
  std::unordered_map<const Node*, int> places_;
};

bool has_kernels(const TensorType& type) {
  return type.is_static() && (type.dtype == DType::kFloat || type.dtype == DType::kDouble);
}

bool is_only_use(const Value* value) { return value->uses().size() == 1 && !value->graph().is_output(value); }

// The batch normalization that makes `value` and nothing else reads.
Node* normalization_before(Value* value, const TensorType& type) {
  Node* node = value->producer();
  const bool fits = node && node->is("BatchNormalizationTrain", kDomain) && value == node->output(0) &&
                    is_only_use(value) && value->type() == type && has_kernels(type);
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

// y = relu(normalization + residual), without residual where there is none
void join(Node* normalization, Node* sum, Value* residual, Node* relu, Places& places) {
  Graph& graph = relu->graph();
  Builder b(&graph, normalization);
  b.set_name(relu->output()->name());
  std::vector<Var> inputs;
  for (Value* input : normalization->inputs()) inputs.push_back(b.var(input));
  if (residual) inputs.push_back(b.var(residual));
  const char* op = residual ? "BatchNormalizationAddReluTrain" : "BatchNormalizationReluTrain";
  const std::vector<Var> outputs = call(b, op, 3, inputs, epsilon_of(*normalization));
  places.add(outputs[0].value()->producer(), normalization);
  graph.replace(relu->output(), outputs[0].value());
  graph.remove(relu);
  if (sum) graph.remove(sum);
  replace_outputs(normalization, outputs);
  graph.remove(normalization);
}

bool join_forward(Node* relu, Places& places) {
  if (!relu->is("Relu")) return false;
  Value* x = relu->input(0);
  const TensorType type = x->type();
  if (Node* normalization = normalization_before(x, type)) {
    join(normalization, nullptr, nullptr, relu, places);
    return true;
  }
  Node* sum = x->producer();
  if (!sum || !sum->is("Add") || !is_only_use(x)) return false;
  for (int i = 0; i < 2; ++i) {
    Value* residual = sum->input(1 - i);
    Node* normalization = normalization_before(sum->input(i), type);
    if (!normalization || residual->type() != type || !places.is_before(residual, normalization)) continue;
    join(normalization, sum, residual, relu, places);
    return true;
  }
  return false;
}

// The joint gradient stands where that of Relu stood: all else it reads must be there by then.
bool join_backward(Node* gradient, Places& places) {
  if (!gradient->is("BatchNormalizationGrad", kDomain) || !gradient->output(0)) return false;
  Value* dz = gradient->input(4);
  Node* relu = dz->producer();
  if (!relu || !relu->is("ReluGrad", kDomain) || !has_kernels(dz->type())) return false;
  if (relu->input(0)->type() != dz->type() || relu->input(1)->type() != dz->type()) return false;
  for (int i = 0; i < 4; ++i) {
    if (!places.is_before(gradient->input(i), relu)) return false;
  }
  Graph& graph = relu->graph();
  Builder b(&graph, relu);
  b.set_name(gradient->output(0)->name());
  std::vector<Var> inputs;
  for (int i = 0; i < 4; ++i) inputs.push_back(b.var(gradient->input(i)));
  for (Value* input : relu->inputs()) inputs.push_back(b.var(input));
  const int num_outputs = is_only_use(dz) ? 3 : 4;
  const std::vector<Var> outputs = call(b, "BatchNormalizationReluGrad", num_outputs, inputs, epsilon_of(*gradient));
  places.add(outputs[0].value()->producer(), relu);
  replace_outputs(gradient, outputs);
  graph.remove(gradient);
  if (num_outputs == 4) graph.replace(dz, outputs[3].value());
  graph.remove(relu);
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
