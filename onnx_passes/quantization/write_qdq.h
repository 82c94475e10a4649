// Fake quantization as the standard writes it, and integers where floats stood: what `export` makes of a model that was
// trained with quantization. Functions on an inference model that one caller owns; they throw Error.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Replaces FakeQuantizeInteger, FakeQuantizeWeight and FakeQuantizeActivation by QuantizeLinear and DequantizeLinear,
// weights still floats: importing it trains on, with the scales that the activations have. An activation that no step
// has observed is left as it is.
void write_qdq(Model* model);

// The model that integer kernels run: each constant weight before a QuantizeLinear is stored as integers,
// <weight>_quantized; a batch norm after a convolution goes into its scales and its bias; biases of convolutions and
// Gemms are int32 in units of the product of both scales; a layer whose quantized input was moved reads it quantized
// again. Numbers are the same but for rounding in the biases. Returns how many weights are integers now.
int store_quantized(Model* model);

}  // namespace onnx_train
