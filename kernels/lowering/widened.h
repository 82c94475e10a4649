// Values that mixed precision has rounded: narrowed to bfloat16 and widened again for readers of float32. Pure
// functions.
#pragma once

#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// The bfloat16 value that `value` is a float32 copy of; null if it is not such a copy.
inline Value* widened_from(const Value* value) {
  const Node* node = value ? value->producer() : nullptr;
  const bool widens = node && node->is("Cast") && node->input(0)->dtype() == DType::kBFloat16;
  return widens && value->dtype() == DType::kFloat ? node->input(0) : nullptr;
}

// True if every element of the float32 `value` is a bfloat16 number: it was widened, selected among such numbers (Relu,
// MaxPool, ..), or only moved since. Rounding it changes nothing.
bool holds_bfloat16(const Value* value);

// The Casts to bfloat16 that are the only readers of the float32 `value`; empty if another node reads all of its bits.
inline std::vector<Node*> narrowing_readers(const Value* value) {
  std::vector<Node*> casts;
  if (!value || value->dtype() != DType::kFloat || value->graph().is_output(value)) return casts;
  for (const Use& use : value->uses()) {
    const bool narrows = use.node->is("Cast") && use.node->output()->dtype() == DType::kBFloat16 &&
                         &use.node->graph() == &value->graph() && !value->graph().is_output(use.node->output());
    if (!narrows) return {};
    casts.push_back(use.node);
  }
  return casts;
}

}  // namespace onnx_train
