// Integers where floats stood: the form of a quantized model that integer kernels run. Functions on an inference model
// that one caller owns, whose fake quantization is written as pairs (write_qdq.h); they throw Error.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct StoredIntegers {
  int weights = 0;                  // that are integers now
  std::vector<std::string> floats;  // weights and biases of layers beside them that are none: "bias 'b' of ..: why"
};

// Each constant weight before a QuantizeLinear is stored as integers, <weight>_quantized; a batch norm after a
// convolution goes into its scales and its bias; biases are int32 in units of the product of both scales, and a MatMul
// with one becomes a Gemm; a layer whose quantized input was moved reads it quantized again. Numbers are the same but
// for rounding in the biases, which stay floats where the layer has fewer than 8 bits: a unit is coarse there.
StoredIntegers store_quantized(Model* model);

}  // namespace onnx_train
