// Rewrites of recurrent operators and of Scans, for every device.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// RNN, GRU and LSTM that have the batch first are given the sequence first, with Transposes around them.
bool put_sequences_first(Model& model);

// An LSTM or GRU beside its training form (functions/recurrent.cc), of the same inputs, is that form: the steps run
// once.
bool share_recurrent_steps(Model& model);

// Scans whose number of steps is known become their steps, one after the other.
bool unroll_scans(Model& model);

}  // namespace onnx_train
