// Loss scaling: the gradient of the loss starts as a large number instead of 1, so that small gradients survive in
// 16-bit types with few exponents (float16, which scales unless the options say otherwise; bfloat16 has float32's range
// and does not need it). The optimizer divides
// the gradients by the scale again. An update with non-finite gradients is skipped. Used by passes; one caller owns the
// model.
//
// "dynamic" stores the scale as state: it starts at 65536, doubles after 2000 good updates in a row, and is halved by a
// bad one, like PyTorch's GradScaler; "dynamic(init_scale=1024, growth_interval=50)" says other numbers.
//
//   state/loss_scale         the scale (dynamic only)
//   state/loss_scale/good    good updates since it last changed
//
// Everything is part of the training model, in standard operators. EntryPoint::gradients are the gradients times the
// scale; grad_norm is the norm of the unscaled gradients. The scale of the step is an output with the role loss_scale:
// by it the trainer knows that an update whose gradients are not finite is skipped.
#pragma once

#include <optional>
#include <string>

#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/entry_point.h"

namespace onnx_train {

// The scale of `entry`, in float32; nothing if there is none. The first call creates it. Throws Error for invalid
// options.
std::optional<Var> loss_scale(const Model& model, EntryPoint* entry, Builder* b, const BuildOptions& options);

// Throws Error that says what a loss scale is, unless `text` is one.
void check_loss_scale(const std::string& text);

// A bool scalar: whether the norm of all gradients is finite.
Var is_finite(Var norm);

// Binds the states of a dynamic scale; does nothing for a fixed one.
void advance_loss_scale(const Model& model, EntryPoint* entry, Builder* b, Var finite, const BuildOptions& options);

}  // namespace onnx_train
