#include "kernels/lowering/types/rounding.h"

#include <algorithm>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/half.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Returns the inputs from which the node selects elements (operators.h); nothing for other nodes.
std::vector<Value*> chosen_from(const Node& node) {
  const InputRange from = operator_of(node).selects;
  std::vector<Value*> inputs;
  for (int i = from.begin; i < std::min(from.end, node.num_inputs()); ++i) inputs.push_back(node.input(i));
  return inputs;
}

// Whether the value is a small constant whose elements are all numbers of the type.
bool is_narrow_constant(const Value* value, DType dtype) {
  constexpr int64_t kLargest = 16;
  const Tensor constant = constant_of(value);
  if (constant.empty() || constant.dtype() != DType::kFloat || constant.size() > kLargest) return false;
  for (int64_t i = 0; i < constant.size(); ++i) {
    const auto element = static_cast<float>(constant.at(i));
    const float stored =
        dtype == DType::kBFloat16 ? static_cast<float>(BFloat16(element)) : static_cast<float>(Float16(element));
    if (stored != element) return false;
  }
  return true;
}

// Whether every element of `value` is a number of the type; follows at most `nodes` producers.
bool holds_narrow_within(const Value* value, DType dtype, int nodes) {
  if (const Value* source = widened_from(value)) return source->dtype() == dtype;
  if (!value || value->dtype() != DType::kFloat || nodes == 0) return false;
  if (is_narrow_constant(value, dtype)) return true;
  const std::vector<Value*> sources = value->producer() ? chosen_from(*value->producer()) : std::vector<Value*>();
  const auto holds = [&](const Value* source) { return holds_narrow_within(source, dtype, nodes - 1); };
  return !sources.empty() && std::all_of(sources.begin(), sources.end(), holds);
}

}  // namespace

bool holds_narrow(const Value* value, DType dtype) {
  constexpr int kNodes = 4;
  return holds_narrow_within(value, dtype, kNodes);
}

void replace_node(Node* node, const std::vector<Var>& with) {
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (node->output(i)) node->graph().replace(node->output(i), with[static_cast<size_t>(i)].value());
  }
  node->graph().remove(node);
}

bool narrow_once(Node* node) {
  Value* source = node->is("Cast") ? widened_from(node->input(0)) : nullptr;
  if (!source || node->output()->dtype() != source->dtype() || node->graph().is_output(node->output())) return false;
  replace_node(node, {Builder(&node->graph(), node).var(source)});
  return true;
}

}  // namespace onnx_train
