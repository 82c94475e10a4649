// Integers that nodes clip to a range that is narrower than their type's: Brevitas writes 3 bits as QuantizeLinear to
// int8, Clip, DequantizeLinear ("QCDQ"), and stored weights as Clip, DequantizeLinear. Functions on a graph that one
// caller owns.
#pragma once

#include <optional>

#include "onnx_passes/quantization/qdq.h"

namespace onnx_train {

// The range that is left of `range` after the node of `use`: a Clip to constants, a Min or Max with constants, a Relu.
// Nothing for other nodes.
std::optional<QuantizedRange> clipped_range(const Use& use, const QuantizedRange& range);

// The range of stored integers: that of their type, or a narrower one that the initializer's metadata record
// (kFourBits, kRange).
std::optional<QuantizedRange> range_of_stored(const Value& stored);
inline constexpr const char* kRange = "onnx_train.range";  // "-7 7"

// Clips the integers of an initializer to `range`, and records it in its metadata. Returns the initializer that holds
// them: another one if something else reads `stored`.
Value* clip_stored(Value* stored, const QuantizedRange& range);

// Clips of stored integers before a DequantizeLinear are gone; its weight has the range (range_of_stored).
void fold_clips_of_stored(Node* dequantize);

}  // namespace onnx_train
