// The passes that turn a forward model into a training model, and the list that runs them (training_passes.cc).
//
//   import          opset 21 or later, functions inlined, shapes inferred; then recognize: Gelu for what is spelled out
//   indexing        constant multi-axis indices become a Gather
//   training mode   algorithm "step" holds train/<value> copies where training differs from inference
//   mixed precision what "step" rounds to 16 bits, where asked for
//   loss            "step" and "evaluate" get their loss, and the accuracy
//   random numbers  those of the loss in "step" are drawn from the key of the state, as training mode's
//   metrics         "evaluate" gets the statistics of metrics, where asked for
//   gradients       backward pass, global norm
//   delayed scaling scales of what "step" rounds to 8 bits, where asked for
//   accumulate      cut into "accumulate" and "apply" where asked for
//   optimizer       new weights and slots, update bindings
//   initialization  state from a seed
//   simplify        constants, common subexpressions, dead nodes
//
// Names are for people. Passes and the runtime find values by records of the model: bindings, gradients, training
// versions (EntryPoint) and roles (roles.h). If the forward model uses a name for something else, another one is
// chosen: loss_1, state/step_1.
//   inputs          those of the forward model; what the loss names ("labels"); learning_rate, clip_norm (floats with
//                   defaults)
//   outputs         loss, grad_norm, accuracy (class losses with index labels), then nothing else
//   state           <weight>; state/<weight>/<slot>; state/step (int64); state/random_key (uint64[2]: seed, step)
//   values          train/<value>, grad/<value>, next/<state>
#pragma once

#include "onnx_passes/import/import.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/model/table_metadata.h"
#include "onnx_passes/recognize/simplify.h"
#include "onnx_passes/training/strip_training.h"
#include "onnx_passes/training_passes.h"
