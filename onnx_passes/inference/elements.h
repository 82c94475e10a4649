// Inference of the contents of small integer tensors through the operators that compute shapes. ONNX's own data
// propagation covers a few of them; this covers the others that exporters use. Pure functions; any thread.
#pragma once

#include <optional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Longer tensors are data, not shapes.
inline constexpr int64_t kMaxElements = 64;

// The contents of an integer or boolean tensor of rank 0 or 1 with at most kMaxElements elements; nothing otherwise.
std::optional<Dims> elements_of(const Tensor& tensor);
// The known contents of a value, including constants.
std::optional<Dims> elements_of(const Value* value);

// The contents of the node's first output, whose type has been inferred; each element may be a number, a symbol or
// unknown. Nothing for operators that do not compute shapes or that ONNX's data propagation covers.
std::optional<Dims> follow_elements(const Node& node);

// An output dimension that ONNX's inference leaves open but that follows from sizes and symbols: the -1 of a Reshape,
// the length of a Range.
void refine_shape(Node* node);

}  // namespace onnx_train
