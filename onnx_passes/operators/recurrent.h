// The attributes of an RNN, GRU or LSTM with defaults filled in. Our training forms of these operators and their
// gradients (functions/recurrent.cc) have the same attributes, but write activations as one string, "Sigmoid Tanh
// HardSigmoid(0.2,0.5)". Plain values and pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/attrs.h"
#include "onnx_passes/ir/graph.h"
#include "onnx_passes/operators/gate_activation.h"

namespace onnx_train {

struct Recurrence {
  enum Cell { kRnn, kGru, kLstm };
  Cell cell = kRnn;
  std::vector<bool> backwards;  // per direction: runs from the last step to the first
  // For each direction in turn: f; or f, g; or f, g, h.
  std::vector<GateActivation> activations;
  float clip = 0;                    // limit of the activations' inputs; 0: none
  bool input_forget = false;         // LSTM: the forget gate is 1 - the input gate
  bool linear_before_reset = false;  // GRU: the reset gate applies after the product with R and its bias
  bool batch_major = false;          // X and Y are batch-first (layout = 1)
  // Our functions, in mixed precision: h and the gates' gradients are rounded to bfloat16, and so are the gates'
  // values, which the backward pass reads.
  bool round_operands = false, round_gates = false;
  bool operator==(const Recurrence&) const = default;

  int64_t directions() const { return static_cast<int64_t>(backwards.size()); }
  int64_t gates() const { return cell == kLstm ? 4 : cell == kGru ? 3 : 1; }
  int activations_per_direction() const { return cell == kLstm ? 3 : cell == kGru ? 2 : 1; }
  const GateActivation& activation(int64_t direction, int i) const {
    return activations[static_cast<size_t>(direction * activations_per_direction() + i)];
  }
};

// For RNN, GRU, LSTM and RNNGrad, GRUTrain, ... Throws Error if an attribute is invalid.
Recurrence find_recurrence(const Node& node);
bool is_recurrent(const Node& node);  // ONNX's RNN, GRU or LSTM

// For LSTMTrain, GRUTrain and RNNTrain.
int outputs_in_training(const Recurrence& recurrence);

// The attributes of our functions, which `find_recurrence` reads back, except hidden_size, which follows from the
// shapes.
Attrs attributes_of(const Recurrence& recurrence);

}  // namespace onnx_train
