// Quantized models in the form QDQ, as ONNX Runtime's quantizer and PyTorch's exporter write them, made trainable. A
// QuantizeLinear and the DequantizeLinear after it become one FakeQuantizeInteger (FakeQuantize for floats of 8 bits),
// whose gradient is the straight-through estimator; a DynamicQuantizeLinear becomes its body first. Integer weights
// before a DequantizeLinear stay as they are, frozen, unless they are to be trained: then a float master takes their
// place, rounded in every step. Functions on a model that one caller owns, whose types are inferred; they throw Error.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Integers of 4 bits become 8 bits: returns how many tensors there were. Their ranges stay (kFourBits), and large ones
// keep 4 bits in memory (Tensor::unpacked).
int64_t widen_four_bits(ModelMessage* message);

// Fuses pairs in the graph and its subgraphs; returns their number.
int64_t fuse_quantization(Graph* graph);

// The integer initializer that the node dequantizes, a stored weight; null for other nodes.
const Value* stored_weight(const Node& node);
// The floats that such a node gives; empty if its scale is not a constant.
Tensor dequantized(const Node& node);

// The integer initializers that DequantizeLinear nodes of the graph read: stored weights.
std::vector<const Value*> quantized_weights(const Graph& graph);

// A node of an imported graph that rounds to integers, or reads stored ones, in words; "" if there is none.
std::string find_quantization(const Graph& graph);

// The name of the float master of a stored weight: ONNX Runtime's quantizer adds "_quantized" to it.
std::string master_name(const Value& stored);

// Stored weights that a pattern names, by their own names or that of their masters, become float masters. Returns the
// names of those.
std::vector<std::string> make_float_masters(Model* model, const std::vector<std::string>& patterns);

}  // namespace onnx_train
