// Functions in our domain that only lowering emits; onnx_passes/functions/functions.h explains functions. A variant of
// an operator has the operator's name; the types of its operands and its attributes select it. Its body casts or
// transposes, and calls the operator.
#pragma once

#include "onnx_passes/functions/functions.h"

namespace onnx_train {

const std::vector<const FunctionRow*>& lowering_function_rows();

// Adds a call, and the function to the model if missing: from lowering_function_rows() if it has the row, else from
// function_rows(). Throws Error if neither has it.
std::vector<Var> call_lowered(Builder& b, const std::string& op, int num_outputs, const std::vector<Var>& inputs,
                              const Attrs& attrs = {});
inline Var call_lowered(Builder& b, const std::string& op, const std::vector<Var>& inputs, const Attrs& attrs = {}) {
  return call_lowered(b, op, 1, inputs, attrs)[0];
}

// Whether the integer attribute is present and not 0.
bool is_set(const Attrs& attrs, const std::string& name);

// Returns float convolutions, channels first or last (channels_last.cc), from which products.cc makes its rows.
std::vector<FunctionRow> convolution_layouts();

}  // namespace onnx_train
