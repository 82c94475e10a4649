// RNN, GRU and LSTM whose sequences are batch-first. Changes the node's graph; one thread.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Converts a batch-first ONNX node to sequence-first, with Transposes around it. Returns the new node; null if nothing
// reads the old one.
Node* put_sequence_first(Node* node);

}  // namespace onnx_train
