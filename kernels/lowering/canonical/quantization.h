// Passes for quantized tensors, run by the pipeline (kernels/lowering/pipeline.h). Functions on a model that one caller
// owns, whose shapes are concrete; they throw Error that names the node.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Dequantizes stored weights anew for each node that reads them.
bool dequantize_at_readers(Model& model);

// Replaces QuantizeLinear and DequantizeLinear by element-wise nodes.
bool expand_quantization(Model& model);

}  // namespace onnx_train
