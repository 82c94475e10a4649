// Loss scaling: the loss's gradient starts as a large number instead of 1, so that small gradients survive in 16 bits
// with few exponents (float16; bfloat16 has float32's range and needs none). What comes out is divided again where the
// optimizer uses it. An update whose gradients are not finite is skipped.
//
// "dynamic" keeps the scale as state: it doubles after 2000 good updates in a row and is halved by a bad one, as
// PyTorch's GradScaler does it, starting at 65536.
//
//   state/loss_scale         the scale (dynamic only)
//   state/loss_scale/good    good updates since it last changed
//
// Everything is in the training model, in standard operators. EntryPoint::gradients are gradients times the scale;
// grad_norm is the norm of the gradients themselves.
#pragma once

#include <optional>

#include "onnx_passes/passes/entry_point.h"
#include "onnx_passes/passes/passes.h"

namespace onnx_train {

// The scale of `entry`, in float32; nothing when there is none. The first call makes it. Throws Error for options that
// make no sense.
std::optional<Var> loss_scale(const Model& model, EntryPoint* entry, Builder* b, const BuildOptions& options);

// Whether the norm of all gradients is a number: a bool scalar.
Var is_finite(Var norm);

// Binds the states of a dynamic scale; changes nothing for a fixed one.
void advance_loss_scale(const Model& model, EntryPoint* entry, Builder* b, Var finite);

}  // namespace onnx_train
