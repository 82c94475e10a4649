// Mixed precision: which values of a training step are rounded to 16 bits, or to 8.
//
// The pass changes no type. It adds two functions to the step's graph (functions/precision.cc): RoundTo where a value
// is rounded, and RoundGradientTo where the gradient of a value is rounded. RoundTo passes its own gradient through
// unchanged. Every gradient rule therefore sees float32, weights get float32 gradients, sums of gradients are computed
// in float32, and any runtime computes the same numbers. Lowering turns this into storage: a rounded value is stored in
// 16 bits, and a product of rounded values runs on 16-bit operands with a float32 result (kernels/lowering).
//
//   gemm-bf16   Products and convolutions read rounded operands, also in the backward pass. The rest is float32.
//   bf16        Activations and their gradients are rounded, too, where the table in mixed_precision.cc says so.
//   fp16        The same, to float16.
//   fp8         As bf16. Products with weights read operands that are rounded to 8-bit floats as well, E4M3 forward
//   and,
//               for gradients, E5M2; delayed_scaling.h adds their scales after the gradients.
//
// Weights, optimizer state, losses, reductions and statistics stay float32. Runs after the training mode, whose nodes
// it changes, and before the loss, which computes in float32 on rounded values. Values that the step shares with the
// inference graph are copied first (train/<value>): predict and evaluate do not change. One caller owns the model.
#pragma once

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

Pass mixed_precision(const BuildOptions& options);

// "float32", "gemm-bf16", "bf16", "fp16", "fp8", as --precision takes them. Throws Error that lists them.
Precision parse_precision(const std::string& name);
const char* name(Precision precision);

}  // namespace onnx_train
