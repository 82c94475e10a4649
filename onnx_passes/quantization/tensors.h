// Arithmetic of quantized tensors on the host, in float32 as kernels do it. Pure functions; any thread. They throw
// Error for shapes that do not fit.
#pragma once

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/quantization/qdq.h"

namespace onnx_train {

// The contents of a weight: an initializer, or a Transpose of one; empty for other values.
Tensor constant_operand(const Value* operand);
// The name of the initializer.
std::string stored_name(const Value& operand);

// max |w| / high over each slice along `axis` [sizes of axis], or over all [] for -1; 1 where w is zero.
Tensor symmetric_scales(const Tensor& w, int64_t axis, double high);
// The same over each run of `of.block` elements along an axis: [.., ⌈D / block⌉, ..].
Tensor block_scales(const Tensor& w, const Granularity& of, double high);

// clip(round(w / scale) + zero_point) of type `to`; empty where the scales do not fit. `zero_point` may be empty.
Tensor quantize(const Tensor& w, const Tensor& scale, const Tensor& zero_point, const Granularity& of, DType to);
// (q - zero_point) scale, in the type of the scale; likewise.
Tensor dequantize(const Tensor& q, const Tensor& scale, const Tensor& zero_point, const Granularity& of);

}  // namespace onnx_train
