// RNN and its gradient (functions/recurrent.cc has the formulas).
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/walk.h"

namespace onnx_train::cuda {
namespace {

// ---- Forward: inputs x w r b lens h0; outputs y y_h

template <typename T>
struct RnnCell : CellNode, Phases<true, GateRows{0, 1}> {
  struct Loaded {
    T sums[1];
    T h;
  };

  template <int>
  __device__ Loaded load(const CellElement& at) const {
    return {{gates[at.gate]}, h[at.state]};
  }
  template <int>
  __device__ OperandPart<T, 1> step(const CellElement& at, const Loaded& x) const {
    T now = x.h;
    if (at.live) h[at.state] = now = rounded(rounds_operands, activate(activations[at.d][0], clip, x.sums[0]));
    if (y) y[at.value] = at.live ? now : T{0};
    return {{now}};
  }
  __device__ OperandPart<T, 1> first_operand(const CellElement& at) const { return {{h[at.state]}}; }

  const T* gates;
  T *h, *y;
};

template <typename T>
struct RnnForward {
  static constexpr int kStepGates = 1, kGates = kNone;
  using Cell = RnnCell<T>;

  RnnForward(const NodeSpec&, const Sequence& sequence, Workspace*) : s(sequence) {}
  size_t workspace() const { return 0; }
  void start(const Launch&) const {}
  // Calls f(identity of the cell), and returns what it returns.
  template <typename F>
  static auto with_type(const Recurrence&, const F& f) {
    return f(std::type_identity<Cell>());
  }
  template <typename F>
  void with_cell(const Launch& launch, const ForwardValues<T>& at, const F& f) const {
    f(Cell{s.cell_node(launch, 4), {}, at.gates, at.h, at.y});
  }
  void step(const Launch& launch, int64_t t, int64_t d, const ForwardValues<T>& at) const {
    with_cell(launch, at, [&](const Cell& cell) { s.enqueue_cell<0>(launch, "rnn_step", cell, t, d); });
  }

  const Sequence& s;
};

// ---- Backward: inputs r lens h0 y dy dy_h; outputs dgates dr dh0

template <typename T>
struct RnnGradientCell : CellNode, Phases<false, GateRows{0, 1}> {
  struct Loaded {
    T sums[1];  // dh
    T y, dy;
  };

  template <int>
  __device__ Loaded load(const CellElement& at) const {
    return {{dh[at.state]}, y[at.value], dy ? dy[at.value] : T{0}};
  }
  template <int>
  __device__ OperandPart<T, 1> step(const CellElement& at, const Loaded& x) const {
    T dgate = 0;
    if (at.live) dgate = rounded(rounds_operands, differentiate(activations[at.d][0], x.y, x.sums[0] + x.dy));
    dh[at.state] = at.live ? T{0} : x.sums[0];
    dgates[at.gate] = dgate;
    return {{dgate}};
  }
  __device__ void finish(const CellElement& at, const Loaded& x) const { dh[at.state] = x.sums[0]; }

  const T *y, *dy;
  T *dh, *dgates;
};

template <typename T>
struct RnnBackward {
  static constexpr int kStepGates = 1, kY = 3, kDy = 4;
  static constexpr bool kNeedsStates = false;
  using Cell = RnnGradientCell<T>;

  RnnBackward(const NodeSpec&, const Sequence& sequence, Workspace*) : s(sequence) {}
  size_t workspace() const { return 0; }
  void start(const Launch&) const {}
  // Calls f(identity of the cell), and returns what it returns.
  template <typename F>
  static auto with_type(const Recurrence&, const F& f) {
    return f(std::type_identity<Cell>());
  }
  template <typename F>
  void with_cell(const Launch& launch, const BackwardValues<T>& at, const F& f) const {
    f(Cell{s.cell_node(launch, 1), {}, launch.in<T>(kY), at.dy, at.dh, at.dgates});
  }
  void step(const Launch& launch, int64_t t, int64_t d, const BackwardValues<T>& at) const {
    with_cell(launch, at, [&](const Cell& cell) { s.enqueue_cell<0>(launch, "rnn_gradient_step", cell, t, d); });
  }
  void finish(const Launch&, const T*, void*) const {}

  const Sequence& s;
};

}  // namespace

std::vector<Kernel> rnn_kernels() { return recurrence_rows<RnnForward, RnnBackward>("RNN", "RNNTrain", "RNNGrad"); }

}  // namespace onnx_train::cuda
