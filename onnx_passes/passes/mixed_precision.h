// Mixed precision: which values of a training step are rounded to bfloat16.
//
// The pass changes no type. It sets two functions into the step's graph (functions/precision.cc): RoundToBfloat16 where
// a value is rounded, RoundGradientToBfloat16 where the gradient that comes back is. Both are differentiated straight
// through, so that every rule sees float32, weights get float32 gradients, sums of gradients are made in float32, and
// any runtime computes the same numbers. Lowering makes storage of it: a rounded value is kept in 16 bits, and a
// product of rounded values runs on 16-bit operands with a float32 result (kernels/cpu/lowering).
//
//   gemm-bf16   Products and convolutions take rounded operands, in the backward pass as well. The rest is float32.
//   bf16        Activations and their gradients are rounded, too, where the table in mixed_precision.cc says so.
//
// Weights, optimizer state, losses, reductions and statistics stay float32. Comes behind the training mode, whose nodes
// it changes, and before the loss, which computes in float32 on rounded values. What the step shares with the inference
// graph it copies first (train/<value>): predict and evaluate stay as they are.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass mixed_precision(const BuildOptions& options);

// "float32", "gemm-bf16", "bf16", as --precision takes them. Throws Error that lists them.
Precision parse_precision(const std::string& name);
const char* name(Precision precision);

}  // namespace onnx_train
