// Sizes, layouts and order of steps of RNN, GRU and LSTM, for the kernels of every device. Layouts are those of
// functions/recurrent.cc. Plain values that host and device code share, and pure functions.
#pragma once

#include "kernels/kernel.h"
#include "kernels/math/host_device.h"
#include "onnx_passes/operators/recurrent.h"

namespace onnx_train {

struct Extents {
  int64_t steps = 0, batch = 0, directions = 0, hidden = 0;
  int64_t gates = 0;  // gates per direction

  ONNX_TRAIN_HD int64_t samples() const { return steps * batch; }
  ONNX_TRAIN_HD int64_t gate_row() const { return gates * hidden; }              // of one sample and direction
  ONNX_TRAIN_HD int64_t gate_stride() const { return directions * gate_row(); }  // distance between samples
  // Offsets of a sample's row in [T, B, D, n H], in [T, D, B, H] and in [D, B, H].
  ONNX_TRAIN_HD int64_t gate(int64_t t, int64_t d, int64_t b) const {
    return ((t * batch + b) * directions + d) * gate_row();
  }
  ONNX_TRAIN_HD int64_t value(int64_t t, int64_t d, int64_t b) const {
    return ((t * directions + d) * batch + b) * hidden;
  }
  ONNX_TRAIN_HD int64_t state(int64_t d, int64_t b) const { return (d * batch + b) * hidden; }
  ONNX_TRAIN_HD int64_t state_size() const { return directions * batch * hidden; }
};

struct Order {
  bool backwards[2] = {};  // for each direction
  int64_t steps = 0;

  ONNX_TRAIN_HD int64_t step(int64_t d, int64_t i) const { return backwards[d] ? steps - 1 - i : i; }
  ONNX_TRAIN_HD int64_t before(int64_t d, int64_t t) const { return backwards[d] ? t + 1 : t - 1; }
  ONNX_TRAIN_HD bool is_first(int64_t d, int64_t t) const { return t == step(d, 0); }
};

// Whether sample b has step t. `lengths` is null if all samples have every step.
ONNX_TRAIN_HD inline bool is_live(const int32_t* lengths, int64_t t, int64_t b) { return !lengths || t < lengths[b]; }

// Reads a gradient, whose input `y` has the shape of y [T, D, B, H], or, if `y` is -1, a node with x, w and r.
Extents extents_of(const NodeSpec& spec, const Recurrence& recurrence, int y);
Order order_of(const Recurrence& recurrence, int64_t steps);

// Whether the node is sequence-first and all its floats have one type, float32 or float64.
bool takes_recurrence(const NodeSpec& spec);

}  // namespace onnx_train
