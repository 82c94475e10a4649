// Values that mixed precision has rounded: narrowed to bfloat16, and widened again for whoever reads float32.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train::cpu {

// The bfloat16 value that `value` is a float32 copy of; null when it is something else.
inline Value* widened_from(const Value* value) {
  const Node* node = value ? value->producer() : nullptr;
  const bool widens = node && node->is("Cast") && node->input(0)->dtype() == DType::kBFloat16;
  return widens && value->dtype() == DType::kFloat ? node->input(0) : nullptr;
}

// True when every element of the float32 `value` is a bfloat16 number: it was widened, or chosen among such numbers
// (Relu, MaxPool, ..), or only moved since. Rounding it changes nothing.
bool holds_bfloat16(const Value* value);

}  // namespace onnx_train::cpu
