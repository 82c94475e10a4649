// Values that mixed precision has rounded: narrowed to bfloat16 or float16 and widened again for readers of float32.
// Pure functions.
#pragma once

#include <vector>

#include "onnx_passes/ir/builder.h"

namespace onnx_train {

// The 16-bit value that `value` is a float32 copy of; null if it is not such a copy.
inline Value* widened_from(const Value* value) {
  const Node* node = value ? value->producer() : nullptr;
  const bool widens = node && node->is("Cast") && is_16_bit_float(node->input(0)->dtype());
  return widens && value->dtype() == DType::kFloat ? node->input(0) : nullptr;
}

// True if every element of the float32 `value` is a number of the 16-bit type `dtype`: it was widened, selected among
// such numbers (Relu, MaxPool, ..), or only moved since. Rounding it changes nothing.
bool holds_narrow(const Value* value, DType dtype);

// The Casts to one 16-bit type that are the only readers of the float32 `value`; empty if another node reads all of its
// bits.
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

// Makes the readers of the node's outputs read `with` instead, one for each output, and removes the node.
void replace_node(Node* node, const std::vector<Var>& with);

// narrow(widen(x)) -> x, where `narrow` is a Cast to a 16-bit type and `widen` a Cast of a value of that type to
// float32.
bool narrow_once(Node* node);

// The number of leading inputs whose elements the node only moves; its other inputs say where to.
int num_moved(const Node& node);

}  // namespace onnx_train
