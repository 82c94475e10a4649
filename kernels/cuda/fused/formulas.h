// The element-wise operators as C++ expressions, for generated kernels: the formulas of kernels/elementwise.h, which
// name the functors of kernels/math. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train::cuda {

// Returns the type of elements in generated code ("float"), or "" for types that generated kernels do not compute with.
std::string element_type(DType dtype);

// Returns the value as an expression of this type that keeps all bits.
std::string constant_text(const std::string& type, const void* value, size_t bytes);

// Returns the result of an element-wise node as an expression of its operands, which are expressions, too, or empty if
// absent. Returns nothing if the node is not element-wise or has other element types.
std::optional<std::string> formula_text(const Node& node, const std::vector<std::string>& operands);

// Returns the class of a reduction's operations (kernels/reductions.h), or "" if generated kernels lack it.
std::string reducer_text(const Node& node);

}  // namespace onnx_train::cuda
