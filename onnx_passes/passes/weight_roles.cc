#include "onnx_passes/passes/weight_roles.h"

#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/recurrence.h"

namespace onnx_train {
namespace {

bool is_norm(const Node& node) {
  return node.is("BatchNormalization") || node.is("LayerNormalization") || node.is("RMSNormalization") ||
         node.is("RMSNormalization", kDomain) || node.is("InstanceNormalization") || node.is("GroupNormalization");
}

bool is_convolution(const Node& node) { return node.is("Conv") || node.is("ConvTranspose"); }

// Nodes that hand on a linear layer's result with other shape, type or noise.
bool passes_on(const Node& node) {
  return node.is("Reshape") || node.is("Identity") || node.is("Cast") || node.is("Dropout") || node.is("Transpose") ||
         node.is("Squeeze") || node.is("Unsqueeze");
}

bool is_constant(const Value* value) {
  return value->is_initializer() || (value->producer() && value->producer()->is("Constant"));
}

// A layer and its bias are not further apart: what looks back from each of a million biases must not walk far.
constexpr int kMaxHandedOn = 64;

// The uses in the inference graph: the backward pass reads weights, too.
std::vector<Use> uses_of(const Value& value) {
  std::vector<Use> uses;
  for (const Use& use : value.uses()) {
    if (&use.node->graph() == &value.graph()) uses.push_back(use);
  }
  return uses;
}

// The other operand of a node with two.
const Value* other(const Use& use) { return use.node->input(1 - use.index); }

// [out, in, ...]: torch's fans.
void set_fans(const Shape& shape, WeightUse* use) {
  double receptive = 1;
  for (size_t i = 2; i < shape.size(); ++i) receptive *= static_cast<double>(shape[i]);
  use->fan_out = static_cast<double>(shape[0]) * receptive;
  use->fan_in = static_cast<double>(shape[1]) * receptive;
}

// Whether what a linear layer gives is added to something that is no bias.
bool reaches_residual(const Value* value) {
  std::vector<const Value*> pending = {value};
  while (!pending.empty()) {
    value = pending.back();
    pending.pop_back();
    for (const Use& use : uses_of(*value)) {
      const bool adds = use.node->is("Add");
      if (adds && !is_constant(other(use))) return true;
      if (adds || (passes_on(*use.node) && use.index == 0)) pending.push_back(use.node->output());
    }
  }
  return false;
}

// `use` reads the weight, which is `transposed` on the way.
bool find_linear(const Value& weight, const Use& use, bool transposed, WeightUse* result) {
  const Node& node = *use.node;
  if (!weight.type().is_static()) return false;
  Shape shape = weight.type().shape();
  if (is_convolution(node) && use.index == 1 && shape.size() > 2) {
    set_fans(shape, result);
  } else if ((node.is("MatMul") || node.is("Gemm")) && use.index == 1 && shape.size() == 2) {
    const bool out_first = transposed != (node.is("Gemm") && node.attr("transB", 0) != 0);
    if (!out_first) std::swap(shape[0], shape[1]);
    set_fans(shape, result);
  } else {
    return false;
  }
  result->role = WeightRole::kLinear;
  result->residual = reaches_residual(node.output());
  return true;
}

// The linear weight whose result `value` is; 0 when there is none.
double fan_in_of_result(const Value* value) {
  for (int i = 0; i < kMaxHandedOn && value && value->producer() && passes_on(*value->producer()); ++i) {
    value = value->producer()->input(0);
  }
  const Node* node = value ? value->producer() : nullptr;
  if (!node || (!node->is("MatMul") && !node->is("Gemm") && !is_convolution(*node))) return 0;
  const Value* weight = node->input(1);
  bool transposed = false;
  if (weight->producer() && weight->producer()->is("Transpose")) {
    weight = weight->producer()->input(0);
    transposed = true;
  }
  WeightUse use;
  return find_linear(*weight, {const_cast<Node*>(node), 1}, transposed, &use) ? use.fan_in : 0;
}

bool find_bias(const Value& weight, const Use& use, WeightUse* result) {
  const Node& node = *use.node;
  const bool third = use.index == 2 && (node.is("Gemm") || is_convolution(node));
  if (!third && !(node.is("Add") && weight.has_rank() && weight.rank() == 1)) return false;
  result->role = WeightRole::kBias;
  result->fan_in = third ? fan_in_of_result(node.output()) : fan_in_of_result(other(use));
  return true;
}

// torch draws all of a recurrent layer's weights by the size of its state.
bool find_recurrent(const Use& use, WeightUse* result) {
  const Node& node = *use.node;
  const TensorType& r = node.input(2) ? node.input(2)->type() : TensorType();
  if (!is_recurrent(node) || !r.is_static() || r.rank() != 3) return false;
  const bool matrix = use.index == 1 || use.index == 2, vector = use.index == 3 || use.index == 7;
  if (!matrix && !vector) return false;
  result->role = matrix ? WeightRole::kLinear : WeightRole::kBias;
  result->fan_in = static_cast<double>(r.shape()[2]);
  result->fan_out = static_cast<double>(r.shape()[1]);
  return true;
}

bool find_embedding(const Value& weight, const Use& use, WeightUse* result) {
  const bool looks_up = use.node->is("Gather") && use.index == 0;
  if (!looks_up || !weight.type().is_static() || weight.rank() != 2) return false;
  result->role = WeightRole::kEmbedding;
  set_fans(weight.type().shape(), result);
  return true;
}

bool find_norm(const Value& weight, const Use& use, WeightUse* result) {
  if (is_norm(*use.node) && use.index > 0) {
    constexpr WeightRole kRoles[] = {WeightRole::kNormScale, WeightRole::kBias, WeightRole::kRunningMean,
                                     WeightRole::kRunningVariance};
    result->role = kRoles[use.index - 1];
    return true;
  }
  if (!use.node->is("Mul") || !weight.has_rank() || weight.rank() != 1) return false;
  result->role = WeightRole::kNormScale;  // a norm in its parts
  return true;
}

// A value that holds the weight's elements, and which of its uses comes next.
struct SeenAs {
  std::vector<Use> uses;
  bool transposed;
  size_t next = 0;
};

// Looks through nodes that hand the weight on, where they stand among its uses.
void find(const Value& weight, WeightUse* result) {
  std::vector<SeenAs> pending;
  const auto look_at = [&](const Value& value, bool transposed) {
    pending.push_back({uses_of(value), transposed});
    const auto& uses = pending.back().uses;
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return find_embedding(weight, use, result); });
  };
  if (look_at(weight, false)) return;
  while (!pending.empty()) {
    SeenAs& seen = pending.back();
    if (seen.next == seen.uses.size()) {
      pending.pop_back();
      continue;
    }
    const Use use = seen.uses[seen.next++];
    const bool transposed = seen.transposed;
    if (find_linear(weight, use, transposed, result) || find_bias(weight, use, result)) return;
    if (find_recurrent(use, result) || find_norm(weight, use, result)) return;
    const bool turns = use.node->is("Transpose");
    const bool through = use.node->is("Identity") || use.node->is("Cast") || (turns && weight.rank() == 2);
    if (through && look_at(*use.node->output(), transposed != turns)) return;
  }
}

}  // namespace

WeightUse use_of(const Value& weight) {
  WeightUse use;
  find(weight, &use);
  return use;
}

}  // namespace onnx_train
