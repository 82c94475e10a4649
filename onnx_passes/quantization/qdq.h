// QuantizeLinear and DequantizeLinear, as far as several passes read them: which elements share a scale, and which
// numbers a type holds. Pure functions and builders of a few nodes; the graph's owner, one thread.
//
//   QuantizeLinear    q = saturate(round(x / scale) + zero_point), ties to even
//   DequantizeLinear  x = (q - zero_point) scale
//
// A scale is one number ("per tensor"), one for each index of an axis ("per channel"), or one for each run of
// `block_size` elements along an axis ("by blocks", from opset 21 on).
#pragma once

#include <optional>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

// Element types that the standard has for quantized tensors and Tensor has not.
inline constexpr DType kUint4{21}, kInt4{22};

// The integers of a quantized type.
struct QuantizedRange {
  double low, high;
  bool operator==(const QuantizedRange&) const = default;
};
std::optional<QuantizedRange> range_of(DType dtype);  // nothing for floats
// The smallest type that holds the range: kInt8 for -127 to 127.
DType type_of(const QuantizedRange& range);

// Which elements of a tensor share a scale.
struct Granularity {
  int64_t axis = -1;  // counted from the start; -1: all elements
  int64_t block = 0;  // 0: an index of the axis has a scale of its own; otherwise a run of as many elements
};
// That of a QuantizeLinear or DequantizeLinear. Nothing if a shape that says it is not known.
std::optional<Granularity> granularity_of(const Node& node);

// A scale or zero point in a shape that broadcasts to a tensor of `rank`, whose blocks are split (split_blocks).
Var broadcast_parameter(Var parameter, const Granularity& of, int64_t rank);
// x [.., D, ..] as [.., D / block, block, ..]; x itself where there are no blocks. Var() if the shape is not known or
// the last block is not whole.
Var split_blocks(Var x, const Granularity& of);
// The opposite; `like` has the shape to return to.
Var join_blocks(Var y, const Granularity& of, Var like);

// Whether two values are one, or constants with equal contents.
bool are_same(const Value* a, const Value* b);

}  // namespace onnx_train
