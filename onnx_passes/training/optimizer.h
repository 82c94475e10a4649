// Adds the optimizer to the entry point with the gradients ("step", or "apply" if they are accumulated): the gradient
// norm, clipping, and for each trained weight its new value and slots with their update bindings. A pass on a model
// that one caller owns.
//
// Inputs: learning_rate and clip_norm, float scalars with defaults (clip_norm is infinite unless set). Output:
// grad_norm, the L2 norm of all gradients before clipping. State: state/<weight>/<slot> with torch's names
// (momentum_buffer; exp_avg, exp_avg_sq; optimizer_table.h has all), and state/step, the number of updates so far
// (int64). All are found by their roles (roles.h); names that the model uses are varied.
//
// Weight decay applies to the weights that BuildOptions::decay names. Without such patterns, every optimizer
// excludes what the literature excludes: tensors of rank 0 and 1, and others that serve as a bias or a norm's scale
// (weight_roles.h). PyTorch's optimizers decay all that they are given; the pattern "*" does so. Groups
// (parameter_groups.h) change options and rates of some weights. Metadata: onnx_train.optimizer, with every option;
// onnx_train.groups, a JSON array of texts; onnx_train.layer_decay and onnx_train.clip_value, where they are given.
#pragma once

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

Pass optimizer(const BuildOptions& options);

// Adds the state state/<weight>/<slot> to `graph`.
Value* add_slot(const Model& model, Graph* graph, const Value* weight, const std::string& slot, const Tensor& initial);

}  // namespace onnx_train
