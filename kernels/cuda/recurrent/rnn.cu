// RNN and its gradient (functions/recurrent.cc has the formulas).
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/walk.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
__global__ void rnn_step(CellStep s, GateActivation f, const T* gates, T* h, T* y) {
  const CellElement at(s);
  if (!at.exists) return;
  if (at.live) h[at.i] = rounded(s.rounds_operands, activate(f, s.clip, gates[at.gate]));
  if (y) y[at.i] = at.live ? h[at.i] : T{0};
}

template <typename T>
struct RnnForward {
  static constexpr int kStepGates = 1, kGates = kNone;

  RnnForward(const NodeSpec&, const Sequence& sequence, Workspace*) : s(sequence) {}
  size_t workspace() const { return 0; }
  void start(const Launch&) const {}
  void step(const Launch& launch, const CellStep& step, const ForwardRows<T>& now) const {
    enqueue(launch, "rnn_step", rnn_step<T>, s.blocks(), kThreads, 0, step, s.recurrence.activation(now.d, 0),
            now.gates, now.h, now.y);
  }

  const Sequence& s;
};

template <typename T>
__global__ void rnn_gradient_step(CellStep s, GateActivation f, const T* y, const T* dy, T* dh, T* dgates) {
  const CellElement at(s);
  if (!at.exists) return;
  T dgate = 0;
  if (at.live) {
    const T total = dy ? dh[at.i] + dy[at.i] : dh[at.i];
    dgate = rounded(s.rounds_operands, differentiate(f, y[at.i], total));
    dh[at.i] = 0;
  }
  dgates[at.gate] = dgate;
}

// Inputs r lens h0 y dy dy_h; outputs dgates dr dh0.
template <typename T>
struct RnnBackward {
  static constexpr int kStepGates = 1, kY = 3, kDy = 4;
  static constexpr bool kNeedsStates = false;

  RnnBackward(const NodeSpec&, const Sequence& sequence, Workspace*) : s(sequence) {}
  size_t workspace() const { return 0; }
  void start(const Launch&) const {}
  void step(const Launch& launch, const CellStep& step, const BackwardRows<T>& now) const {
    const T* y = launch.in<T>(kY) + s.e.value(now.t, now.d, 0);
    enqueue(launch, "rnn_gradient_step", rnn_gradient_step<T>, s.blocks(), kThreads, 0, step,
            s.recurrence.activation(now.d, 0), y, now.dy, now.dh, now.dgates);
  }
  void finish(const Launch&, const T*, void*) const {}

  const Sequence& s;
};

}  // namespace

std::vector<Kernel> rnn_kernels() { return recurrence_rows<RnnForward, RnnBackward>("RNN", "RNNTrain", "RNNGrad"); }

}  // namespace onnx_train::cuda
