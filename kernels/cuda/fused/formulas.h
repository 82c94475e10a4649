// The element-wise operators as C++ expressions, for generated kernels: the formulas of kernels/elementwise.h, which
// name the functors of kernels/math. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train::cuda {

struct ElementwiseOperator {
  const char *op, *domain;  // valid as long as the program
};
std::vector<ElementwiseOperator> elementwise_operators();

// Returns the type of elements in generated code ("float"), or "" for types that kernels do not compute with (strings).
std::string element_type(DType dtype);

// Returns the value as an expression of this type that keeps all bits.
std::string constant_text(const std::string& type, const void* value, size_t bytes);

// Whether the node is element-wise and its operator is defined for these element types.
bool has_formula(const Node& node);

// Returns the result of a node that has a formula as an expression of its operands, which are expressions, too, or
// empty if absent.
std::string formula_text(const Node& node, const std::vector<std::string>& operands);

// Returns the class of a reduction's operations (kernels/reductions.h), or "" if generated kernels lack it.
std::string reducer_text(const Node& node);

}  // namespace onnx_train::cuda
