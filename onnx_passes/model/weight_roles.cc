#include "onnx_passes/model/weight_roles.h"

#include <algorithm>
#include <unordered_set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/recurrent.h"

namespace onnx_train {
namespace {

bool is_norm(const Node& node) {
  return node.is("BatchNormalization") || node.is("LayerNormalization") || node.is("RMSNormalization") ||
         node.is("RMSNormalization", kDomain) || node.is("BatchNormalizationTrain", kDomain) ||
         node.is("InstanceNormalization") || node.is("GroupNormalization");
}

bool is_convolution(const Node& node) { return node.is("Conv") || node.is("ConvTranspose"); }

// Nodes that pass on a linear layer's result with another shape or type, or with dropout.
bool passes_on(const Node& node) {
  return node.is("Reshape") || node.is("Identity") || node.is("Cast") || node.is("Dropout") || node.is("Transpose") ||
         node.is("Squeeze") || node.is("Unsqueeze");
}

// The weight with the numbers that integers leave of it.
bool is_fake_quantization(const Node& node) {
  return node.domain() == kDomain && node.op().starts_with("FakeQuantize");
}

bool is_constant(const Value* value) {
  return value->is_initializer() || (value->producer() && value->producer()->is("Constant"));
}

// Largest distance between a layer and its bias: a search from each of a million biases must be short.
constexpr int kMaxHandedOn = 64;

// The uses in the value's own graph or, where there are none, all: bodies of control flow read weights, and so does the
// backward pass, which comes after them.
std::vector<Use> uses_of(const Value& value) {
  std::vector<Use> uses;
  for (const Use& use : value.uses()) {
    if (&use.node->graph() == &value.graph()) uses.push_back(use);
  }
  return uses.empty() ? value.uses() : uses;
}

// The other operand of a node with two.
const Value* other(const Use& use) { return use.node->input(1 - use.index); }

// [out, in, ...]: fans as torch counts them.
void set_fans(const Shape& shape, WeightUse* use) {
  double receptive = 1;
  for (size_t i = 2; i < shape.size(); ++i) receptive *= static_cast<double>(shape[i]);
  use->fan_out = static_cast<double>(shape[0]) * receptive;
  use->fan_in = static_cast<double>(shape[1]) * receptive;
}

// Whether the output of a linear layer is added to something that is not a bias.
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

// `use` reads the weight, which has been transposed on the way if `transposed`.
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

// The fan-in of the linear weight whose result `value` is; 0 if there is none.
double fan_in_of_result(const Value* value) {
  for (int i = 0; i < kMaxHandedOn && value && value->producer() && passes_on(*value->producer()); ++i) {
    value = value->producer()->input(0);
  }
  const Node* node = value ? value->producer() : nullptr;
  if (!node || (!node->is("MatMul") && !node->is("Gemm") && !is_convolution(*node))) return 0;
  const Value* weight = node->input(1);
  if (weight->producer() && is_fake_quantization(*weight->producer())) weight = weight->producer()->input(0);
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
  if (!third && !(node.is("Add") && weight.type().is_static())) return false;
  const double fan_in = third ? fan_in_of_result(node.output()) : fan_in_of_result(other(use));
  // scikit-learn's exporter stores the bias of a layer as a row.
  const bool is_row = !third && weight.rank() == 2 && weight.type().shape()[0] == 1 && fan_in > 0;
  if (!third && weight.rank() != 1 && !is_row) return false;
  result->role = WeightRole::kBias;
  result->fan_in = fan_in;
  return true;
}

// torch scales all weights of a recurrent layer by the size of its state.
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
  result->role = WeightRole::kNormScale;  // a norm written with elementary operators
  return true;
}

// A value that holds the weight's elements, and the index of its next use.
struct SeenAs {
  std::vector<Use> uses;
  bool transposed;
  size_t next = 0;
};

// Finds the role of the weight from its uses. Uses after a node that passes the weight on are inserted at the position
// of that node.
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
    const bool rounds = is_fake_quantization(*use.node) && use.index == 0;
    const bool through = rounds || use.node->is("Identity") || use.node->is("Cast") || (turns && weight.rank() == 2);
    if (through && look_at(*use.node->output(), transposed != turns)) return;
  }
}

// ---- Constants that are weights

bool is_weight_input(const Use& use) {
  const std::vector<int>& inputs = operator_of(*use.node).weights;
  return std::find(inputs.begin(), inputs.end(), use.index) != inputs.end();
}

// Nodes whose result holds the elements of a weight, their first input.
bool keeps_numbers(const Node& node) {
  return passes_on(node) || node.is("CastLike") || node.is("Flatten") || node.is("Expand") || node.is("Tile");
}

// The source of a value, before changes of shape and type, and before sums and products with constants.
const Value* without_scaling(const Value* value) {
  constexpr int kMaxScalings = 64;  // a search from each constant of a long chain must be short
  for (int i = 0; i < kMaxScalings && value && value->producer(); ++i) {
    const Node& node = *value->producer();
    const bool scales = node.is("Add") || node.is("Sub") || node.is("Mul") || node.is("Div");
    if (passes_on(node)) {
      value = node.input(0);
    } else if (scales && node.num_inputs() == 2 && (is_constant(node.input(0)) || is_constant(node.input(1)))) {
      value = node.input(is_constant(node.input(0)) ? 1 : 0);
    } else {
      break;
    }
  }
  return value;
}

// Nodes that choose elements of an input, or put inputs beside each other, as a table's columns are.
bool arranges(const Node& node) {
  return node.is("Concat") || node.is("Slice") || node.is("Split") ||
         (node.is("Gather") && !is_constant(node.input(0)));
}

// Whether `value` is an input of the model, or several beside each other, at most shifted, scaled and arranged.
bool follows_inputs(const Value* value) {
  constexpr size_t kMaxValues = 1024;  // columns of a table
  std::unordered_set<const Value*> seen = {value};
  std::vector<const Value*> pending = {value};
  for (size_t i = 0; i < pending.size(); ++i) {
    const Value* source = without_scaling(pending[i]);
    if (!source || is_constant(source)) return false;
    const Node* node = source->producer();
    if (!node && source->graph().parent()) return false;
    if (!node) continue;
    if (!arranges(*node) || pending.size() > kMaxValues) return false;
    const int inputs = node->is("Concat") ? node->num_inputs() : 1;
    for (int k = 0; k < inputs; ++k) {
      if (seen.insert(node->input(k)).second) pending.push_back(node->input(k));
    }
  }
  return true;
}

// Whether `value` is computed by more than scaling and shifting inputs of the model: constants that only normalize an
// input, such as images, are not weights.
bool is_computed(const Value* value) { return value && !is_constant(value) && !follows_inputs(value); }

bool is_result_of_layer(const Value* value) {
  while (value->producer() && passes_on(*value->producer())) value = value->producer()->input(0);
  const Node* node = value->producer();
  if (!node || (!node->is("MatMul") && !node->is("Gemm") && !is_convolution(*node))) return false;
  const Value* weight = node->input(1);
  while (weight->producer() && keeps_numbers(*weight->producer())) weight = weight->producer()->input(0);
  return is_constant(weight);
}

// Whether the last axis has one element: a single number that is added there may be the layer's bias.
bool has_one_output(const Value& value) {
  return value.has_rank() && value.rank() > 0 && value.type().dims->back() == Dim(1);
}

// Longest chain of such nodes in exported models; the bound keeps the search short in others.
constexpr int kMaxSteps = 8;

// Whether `value` becomes probabilities: a constant added to it is then a mask, unless it belongs to a layer.
bool reaches_softmax(const Value* value, int steps = 0) {
  return steps < kMaxSteps && std::any_of(value->uses().begin(), value->uses().end(), [&](const Use& use) {
           if (use.node->is("Softmax") || use.node->is("LogSoftmax")) return true;
           const bool goes_on =
               passes_on(*use.node) || use.node->is("Add") || use.node->is("Mul") || use.node->is("Div");
           return goes_on && use.index == 0 && use.node->output() && reaches_softmax(use.node->output(), steps + 1);
         });
}

bool has_computed_input(const Node& node) {
  return std::any_of(node.inputs().begin(), node.inputs().end(), is_computed);
}

bool is_weight_operand(const Value& value, const Use& use) {
  const Node& node = *use.node;
  if (!node.domain().empty() || !node.output() || !value.type().is_static()) return false;
  const Shape shape = value.type().shape();
  if (num_elements(shape) == 1) return node.is("Add") && is_result_of_layer(other(use)) && has_one_output(*other(use));
  if (num_elements(shape) == 0) return false;
  if (node.is("Concat")) return has_computed_input(node) && !is_uniform(constant_of(&value));  // a class token
  if (node.num_inputs() != 2 || !is_computed(other(use))) return false;
  if (node.is("Add")) return is_result_of_layer(other(use)) || !reaches_softmax(node.output());
  // With more than one axis it is a table of angles or a window.
  return node.is("Mul") && std::count_if(shape.begin(), shape.end(), [](int64_t d) { return d != 1; }) == 1;
}

bool is_read_as_weight(const Value& constant, const Value& seen_as, int steps) {
  return steps < kMaxSteps && std::any_of(seen_as.uses().begin(), seen_as.uses().end(), [&](const Use& use) {
           if (is_weight_input(use) || is_weight_operand(constant, use)) return true;
           const Value* result = use.node->output();
           return use.index == 0 && keeps_numbers(*use.node) && result &&
                  is_read_as_weight(constant, *result, steps + 1);
         });
}

}  // namespace

bool is_read_as_weight(const Value& value) {
  return value.has_rank() && value.rank() > 0 && is_read_as_weight(value, value, 0);
}

bool is_scaled_input(const Value* value) { return follows_inputs(value); }

bool is_added_to_scores(const Use& use) {
  const Node& node = *use.node;
  return node.output() && node.num_inputs() == 2 && !is_result_of_layer(other(use)) && reaches_softmax(node.output());
}

WeightUse use_of(const Value& weight) {
  WeightUse use;
  find(weight, &use);
  return use;
}

}  // namespace onnx_train
