// Rewrites of recurrent operators, for every device. The passes run on the thread that builds the plan.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Converts RNN, GRU and LSTM with batch-first layout to sequence-first layout, with Transposes around them.
bool put_sequences_first(Model& model);

// Replaces an LSTM or GRU by its training form (functions/recurrent.cc) if one with the same inputs exists, so that the
// steps run once.
bool share_recurrent_steps(Model& model);

}  // namespace onnx_train
