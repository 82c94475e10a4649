// What the attributes of an RNN, a GRU or an LSTM say, with their defaults filled in. Our training forms of these
// operators and their gradients (functions/recurrent.cc) have the same attributes; they write activations as one
// string, "Sigmoid Tanh HardSigmoid(0.2,0.5)".
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/builder.h"

namespace onnx_train {

// An activation function of a gate. alpha and beta are 0 where the function has none.
struct GateActivation {
  enum Kind {
    kSigmoid,
    kTanh,
    kRelu,
    kLeakyRelu,        // x < 0 ? alpha x : x
    kThresholdedRelu,  // x > alpha ? x : 0
    kElu,              // x < 0 ? alpha (exp(x) - 1) : x
    kHardSigmoid,      // min(max(alpha x + beta, 0), 1)
    kScaledTanh,       // alpha tanh(beta x)
    kAffine,           // alpha x + beta
    kSoftsign,
    kSoftplus,
  };
  Kind kind = kTanh;
  float alpha = 0, beta = 0;
  bool operator==(const GateActivation&) const = default;

  const char* name() const;
  bool has_alpha() const;
  bool has_beta() const;
};

struct Recurrence {
  enum Cell { kRnn, kGru, kLstm };
  Cell cell = kRnn;
  std::vector<bool> backwards;  // of each direction: runs from the last step to the first
  // Of each direction, one after the other: f; or f, g; or f, g, h.
  std::vector<GateActivation> activations;
  float clip = 0;                    // of what goes into activations; 0: not at all
  bool input_forget = false;         // LSTM: the forget gate is 1 - the input gate
  bool linear_before_reset = false;  // GRU: the reset gate applies behind the product with R and its bias
  bool batch_major = false;          // X and Y have the batch first (layout = 1)
  // Of our functions, in mixed precision: h and the gates' gradients are rounded to bfloat16; so are the gates' values,
  // as the backward pass reads them.
  bool round_operands = false, round_gates = false;
  bool operator==(const Recurrence&) const = default;

  int64_t directions() const { return static_cast<int64_t>(backwards.size()); }
  int64_t gates() const { return cell == kLstm ? 4 : cell == kGru ? 3 : 1; }
  int activations_per_direction() const { return cell == kLstm ? 3 : cell == kGru ? 2 : 1; }
  const GateActivation& activation(int64_t direction, int i) const {
    return activations[static_cast<size_t>(direction * activations_per_direction() + i)];
  }
};

// Of RNN, GRU, LSTM and of RNNGrad, GRUTrain, ... Throws Error when an attribute has no meaning.
Recurrence find_recurrence(const Node& node);
bool is_recurrent(const Node& node);  // ONNX's RNN, GRU or LSTM

// A node of ONNX that has the batch first is given the sequence first, with Transposes around it. Returns the new node;
// null when nobody reads the old one.
Node* put_sequence_first(Node* node);

// Of LSTMTrain, GRUTrain and RNNTrain.
int outputs_in_training(const Recurrence& recurrence);

// The attributes of our functions, which `find_recurrence` reads back: all but hidden_size, which the shapes tell.
Attrs attributes_of(const Recurrence& recurrence);

}  // namespace onnx_train
