// Adds the optimizer to the entry point that has the gradients ("step", or "apply" where they are accumulated): the
// gradients' norm, clipping, and for each trained weight its new value and slots with their update bindings.
//
// Inputs: learning_rate and clip_norm, float scalars with defaults (clip_norm infinite unless asked for). Output:
// grad_norm, the L2 norm over all gradients before clipping. State: state/<weight>/<slot> with torch's names
// (momentum_buffer; exp_avg, exp_avg_sq), and state/step, the number of updates so far (int64). All are found by their
// roles (roles.h); names give way to the model's.
//
// Weight decay: those that BuildOptions::decay names. Without such patterns adamw leaves out what the literature leaves
// out: tensors of rank 0 and 1, and others that serve as a bias or a norm's scale (weight_roles.h); sgd and adam decay
// all weights, as PyTorch does. Metadata: onnx_train.optimizer, every option written out.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass optimizer(const BuildOptions& options);

// Adds the state state/<weight>/<slot> to `graph`: zeros of the weight's type and shape.
Value* add_slot(const Model& model, Graph* graph, const Value* weight, const std::string& slot);
// Adds the step count to `graph`.
Value* add_step_count(const Model& model, Graph* graph);

}  // namespace onnx_train
