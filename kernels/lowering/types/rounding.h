// Values that mixed precision has rounded: a Cast narrows them to bfloat16 or float16, another one widens them for
// readers. Pure functions, but for the rewrites at the end.
#pragma once

#include <vector>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

// A Cast of float32 to 16 bits.
inline bool is_rounding(const Node& node) {
  return node.is("Cast") && node.input(0)->dtype() == DType::kFloat && is_16_bit_float(node.output()->dtype());
}
// A rounding whose result is no output of its graph.
inline bool is_rounding_for_readers(const Node& node) {
  return is_rounding(node) && !node.graph().is_output(node.output());
}
// A Cast of 16 bits to float32.
inline bool is_widening(const Node& node) {
  return node.is("Cast") && is_16_bit_float(node.input(0)->dtype()) && node.output()->dtype() == DType::kFloat;
}
// Whether the output has the numbers of input 0 in another form: a view or a widened copy.
inline bool is_other_form(const Node& node) { return is_view(node) || is_widening(node); }

// Returns the 16-bit value of which `value` is a float32 copy, or null.
inline Value* widened_from(const Value* value) {
  const Node* node = value ? value->producer() : nullptr;
  return node && is_widening(*node) ? node->input(0) : nullptr;
}

// Returns the float32 value that was rounded and widened to `value`, or null.
inline Value* before_rounding(const Value* value) {
  const Value* narrow = widened_from(value);
  const Node* node = narrow ? narrow->producer() : nullptr;
  return node && is_rounding(*node) ? node->input(0) : nullptr;
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
    const bool narrows = is_rounding_for_readers(node) && &node.graph() == &value->graph();
    if (!narrows || (!casts.empty() && casts[0]->output()->dtype() != node.output()->dtype())) return {};
    casts.push_back(use.node);
  }
  return casts;
}

// Replaces the node's outputs by `with`, one for each output, and removes the node.
void replace_node(Node* node, const std::vector<Var>& with);

// Rewrites narrow(widen(x)) -> x, where `narrow` is a Cast to the 16-bit type of x.
bool narrow_once(Node* node);

}  // namespace onnx_train
