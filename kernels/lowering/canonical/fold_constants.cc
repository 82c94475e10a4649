#include <algorithm>
#include <cstring>

#include "kernels/device.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/registry.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/inference/elements.h"
#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inference_cache.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/random.h"

namespace onnx_train {
namespace {

// Larger results are cheaper to compute in every step than to store.
constexpr int64_t kMaxFolded = 65536;

// Caches the contents of constant values.
class Constants {
 public:
  const Tensor& of(const Value* value) {
    const Tensor* known = known_.find(value);
    return known ? *known : *known_.try_emplace(value, constant_of(value)).first;
  }
  static bool is_constant(const Value* value) {
    if (value->is_initializer()) return !value->graph().is_input(value);
    return value->producer() && value->producer()->is("Constant");
  }

 private:
  ValueTable<Tensor> known_;
};

int64_t count_nonzero(const Tensor& x, int64_t limit) {
  int64_t count = 0;
  for (int64_t i = 0; i < std::min(x.size(), limit); ++i) count += x.at(i) != 0;
  return count;
}

// Infers sizes that depend on the contents of an input, if these are constant.
void infer_from_data(Node* node, Constants& constants) {
  if (node->is("NonZero") && Constants::is_constant(node->input(0))) {
    const Tensor& x = constants.of(node->input(0));
    node->output()->set_type({DType::kInt64, Dims{static_cast<int64_t>(x.shape().size()), count_nonzero(x, x.size())}});
  }
  if (node->is("Compress") && Constants::is_constant(node->input(1)) && node->input(0)->type().is_static()) {
    const TensorType& x = node->input(0)->type();
    const bool flat = !node->has_attr("axis");
    Dims dims = flat ? Dims{num_elements(x.shape())} : *x.dims;
    Dim& along = dims[static_cast<size_t>(flat ? 0 : normalize_axis(node->attr("axis", 0), x.rank()))];
    along = count_nonzero(constants.of(node->input(1)), along.value());
    node->output()->set_type({x.dtype, dims});
  }
}

bool may_fold(const Node& node) {
  if (!node.subgraphs().empty() || is_random(node) || is_collective(node) || node.num_outputs() == 0) return false;
  for (const Value* input : node.inputs()) {
    if (input && !Constants::is_constant(input)) return false;
  }
  return true;
}

bool outputs_have_at_most(const Node& node, int64_t elements) {
  for (const Value* output : node.outputs()) {
    if (!output) continue;
    if (!output->type().is_static() || output->dtype() == DType::kString) return false;
    if (num_elements(output->type().shape()) > elements) return false;
  }
  return true;
}

// Returns the node's outputs, computed by the CPU kernel, or nothing if there is no kernel.
std::vector<Tensor> compute(const Node& node, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> outputs;
  const NodeSpec spec(node, inputs, /*threads=*/1);
  const Kernel* kernel = find_kernel(Device::cpu(), spec);
  if (!kernel) return {};
  const Prepared prepared = prepare(*kernel, spec);
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Tensor& t : inputs) in.push_back(t.data());
  for (const Value* v : node.outputs()) {
    outputs.push_back(v ? Tensor(v->dtype(), v->type().shape()) : Tensor());
    out.push_back(outputs.back().data());
  }
  Tensor workspace(DType::kUint8, {static_cast<int64_t>(prepared.workspace)});
  run_now(prepared, node, in.data(), out.data(), workspace.data());
  return outputs;
}

bool replace_by_constants(Node* node, const std::vector<Tensor>& results) {
  Graph& graph = node->graph();
  for (size_t i = 0; i < results.size(); ++i) {
    Value* output = node->output(static_cast<int>(i));
    if (!output) continue;
    if (graph.is_output(output)) return false;  // too rare to fold: the plan copies an output anyway
  }
  for (size_t i = 0; i < results.size(); ++i) {
    Value* output = node->output(static_cast<int>(i));
    if (!output) continue;
    Value* constant = graph.add_initializer(graph.unique_name(output->name() + "/folded"), results[i]);
    constant->set_elements(elements_of(results[i]));
    graph.replace(output, constant);
  }
  graph.remove(node);
  return true;
}

// Folds a Where whose condition is uniform: only one of its branches is needed.
bool choose_branch(Node* node, Constants& constants) {
  if (!node->is("Where") || !Constants::is_constant(node->input(0))) return false;
  const Tensor& condition = constants.of(node->input(0));
  const int64_t chosen = count_nonzero(condition, condition.size());
  if (condition.empty() || (chosen != 0 && chosen != condition.size())) return false;
  Value* branch = node->input(chosen ? 1 : 2);
  if (!branch->type().is_static() || branch->type() != node->output()->type()) return false;
  node->graph().replace(node->output(), branch);
  node->graph().remove(node);
  return true;
}

bool fold(Node* node, Constants& constants) {
  // Constant nodes, and contents that inference derives from shapes, need no kernel.
  if (node->num_outputs() == 1 && node->output()) {
    const Tensor known = constant_of(node->output());
    if (!known.empty()) return replace_by_constants(node, {known});
  }
  infer_from_data(node, constants);
  if (choose_branch(node, constants)) return true;
  if (!may_fold(*node)) return false;
  if (!outputs_have_at_most(*node, kMaxFolded)) return false;
  std::vector<Tensor> inputs;
  for (const Value* input : node->inputs()) inputs.push_back(input ? constants.of(input) : Tensor());
  const auto results = compute(*node, inputs);
  return !results.empty() && replace_by_constants(node, results);
}

constexpr int kMostDepth = 100;  // limit of the recursion

// Returns the contents of a value, computed from constants; empty if it depends on anything else, if an intermediate
// value has more than `most` elements, or if constants are more than `depth` nodes away.
Tensor contents_of(const Value* value, int64_t most, int depth, ValueTable<Tensor>* known) {
  if (Constants::is_constant(value)) return constant_of(value);
  if (const Tensor* tensor = known->find(value)) return *tensor;
  const Node* node = value->producer();
  if (!node || depth == 0 || !node->subgraphs().empty() || is_random(*node)) return {};
  if (!outputs_have_at_most(*node, most)) return {};
  std::vector<Tensor> inputs;
  for (const Value* input : node->inputs()) {
    inputs.push_back(input ? contents_of(input, most, depth - 1, known) : Tensor());
    if (input && inputs.back().empty()) return {};
  }
  const std::vector<Tensor> results = compute(*node, inputs);
  for (size_t i = 0; i < results.size(); ++i) {
    if (const Value* output = node->output(static_cast<int>(i))) known->try_emplace(output, results[i]);
  }
  const Tensor* result = known->find(value);
  return result ? *result : Tensor();
}

}  // namespace

Tensor computed_constant(const Value* value, int64_t most_elements) {
  ValueTable<Tensor> known;
  return contents_of(value, most_elements, kMostDepth, &known);
}

namespace {

// Replaces an If with a constant condition by the branch that it takes, and sets `next` to the first node of the
// branch, or to the node after the If if the branch is empty. Forgets types that were inferred without the sizes of
// this plan. Must run before the If is inferred, because the other branch may not fit these sizes: exporters write
// If(size == 1, Squeeze, Identity).
bool fold_if(Node* node, Node** next) {
  if (!node->is("If")) return false;
  Graph& graph = node->graph();
  Node *const before = node->previous(), *const after = node->next();
  std::string taken;
  if (!fold_branch(node, &taken)) return false;
  *next = before ? before->next() : graph.first();
  for (Node* copy = *next; copy != after; copy = copy->next()) forget_shapes(copy);
  return true;
}

}  // namespace

bool fold_constants(Model& model) {
  Constants constants;
  InferenceCache types;
  bool changed = false;
  Node* next = nullptr;
  for (Node* node = model.graph->first(); node; node = next) {
    next = node->next();
    if (fold_if(node, &next)) {
      changed = true;
      continue;
    }
    check_shapes(*node);
    types.infer(node);
    changed |= fold(node, constants);
  }
  return changed;
}

}  // namespace onnx_train
