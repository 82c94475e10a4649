// Scales of the tensors that a training step rounds to 8-bit floats: E4M3 for operands of the forward pass, E5M2 for
// gradients. Their range is narrow, so each tensor is divided by a scale of its own before it is rounded.
//
//   scale = the least power of two with max |x| <= scale * largest number of the type
//
// where max |x| is taken over the last 16 steps, not over this one ("delayed scaling", Micikevicius et al. 2022): then
// a kernel can round while it reads. A power of two keeps the rounded numbers exact in bfloat16. The maxima are one
// state of the model, [tensors, steps]; those that are not finite count as 0, and a tensor that was 0 throughout has
// the scale
// 1. Before the first step, operands are taken to be below 16 and gradients below 1.
#pragma once

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

// Replaces each RoundTo an 8-bit float in the entry point "step" by FakeQuantize. Runs after the gradients. A pass on a
// model that one caller owns.
bool delayed_scaling(Model& model);

}  // namespace onnx_train
