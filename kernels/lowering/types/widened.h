// Values that mixed precision has rounded: narrowed to bfloat16 or float16 and widened for readers. Pure functions.
#pragma once

#include <vector>

#include "onnx_passes/ir/builder.h"

namespace onnx_train {

// Returns the 16-bit value of which `value` is a float32 copy, or null.
inline Value* widened_from(const Value* value) {
  const Node* node = value ? value->producer() : nullptr;
  const bool widens = node && node->is("Cast") && is_16_bit_float(node->input(0)->dtype());
  return widens && value->dtype() == DType::kFloat ? node->input(0) : nullptr;
}

// Whether every element of the float32 `value` is a number of the 16-bit type `dtype`, so that rounding has no effect:
// `value` was widened, selected among such numbers (Relu, MaxPool, ..), or only moved since.
bool holds_narrow(const Value* value, DType dtype);

// Returns the Casts to one 16-bit type that are the only readers of the float32 `value`; nothing if there are others.
inline std::vector<Node*> narrowing_readers(const Value* value) {
  std::vector<Node*> casts;
  if (!value || value->dtype() != DType::kFloat || value->graph().is_output(value)) return casts;
  for (const Use& use : value->uses()) {
    const Node& node = *use.node;
    const bool narrows = node.is("Cast") && is_16_bit_float(node.output()->dtype()) &&
                         &node.graph() == &value->graph() && !value->graph().is_output(node.output());
    if (!narrows || (!casts.empty() && casts[0]->output()->dtype() != node.output()->dtype())) return {};
    casts.push_back(use.node);
  }
  return casts;
}

// Replaces the node's outputs by `with`, one for each output, and removes the node.
void replace_node(Node* node, const std::vector<Var>& with);

// Rewrites narrow(widen(x)) -> x, where `narrow` is a Cast to the 16-bit type of x.
bool narrow_once(Node* node);

// Returns the number of leading inputs whose elements the node only moves.
int num_moved(const Node& node);

}  // namespace onnx_train
