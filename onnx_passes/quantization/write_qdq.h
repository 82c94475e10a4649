// Fake quantization as the standard writes it, for a model that was trained with quantization; store_quantized.h makes
// integers of its weights. A function on an inference model that one caller owns; it throws Error.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Replaces FakeQuantizeInteger, FakeQuantizeWeight and FakeQuantizeActivation by QuantizeLinear and DequantizeLinear,
// weights still floats: importing it trains on, with the scales that the activations have. An activation that no step
// has observed is left as it is.
void write_qdq(Model* model);

}  // namespace onnx_train
