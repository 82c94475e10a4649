// RNN and its gradient (functions/recurrent.cc has the formulas).
#include "kernels/cpu/recurrent/gates.h"
#include "kernels/cpu/recurrent/walk.h"

namespace onnx_train::cpu {
namespace {

template <typename Type, typename OperandType>
struct RnnForward {
  using T = Type;
  using Operand = OperandType;
  static constexpr int kStepGates = 1, kGates = kNone;
  static constexpr bool kReadsState = false;

  RnnForward(const NodeSpec&, const Sequence& sequence, Workspace*) : s(sequence) {}
  void begin(const Launch&) {}
  void start(const Step&) {}
  void finish_sums(const Step&, const Operand*, T*) {}
  void forward(const Step& step, const T* gate, T* h) {
    activate(s.recurrence.activation(step.d(), 0), s.recurrence.clip, s.e.hidden, gate, h);
  }
  void store(const Step&, bool) {}

  const Sequence& s;
};

// Inputs r lens h0 y dy dy_h; outputs dgates dr dh0.
template <typename Type, typename OperandType>
struct RnnBackward {
  using T = Type;
  using Operand = OperandType;
  static constexpr int kStepGates = 1, kY = 3, kDy = 4;
  static constexpr bool kNeedsStates = false;

  RnnBackward(const NodeSpec&, const Sequence& sequence, Workspace*) : s(sequence) {}
  void begin(const Launch&) {}
  void end(const Launch&) {}
  void start(const Step&) {}
  void backward(const Step& step, const Operand*, T* dh, Operand* dgate, T* rows) {
    const int64_t n = s.e.hidden;
    const Stored<T> values = s.inputs.template stored<T>(step.launch, kY);
    T* dgate_row = rows + n;
    std::copy(dh, dh + n, dgate_row);
    const T* y = values.read(s.e.value(step.t, step.d(), step.b), n, rows);
    differentiate(s.recurrence.activation(step.d(), 0), n, y, dgate_row);
    to_operand(s.recurrence.round_operands, n, dgate_row, dgate);
    std::fill(dh, dh + n, T{0});
  }
  void skip(const Step&) {}
  void finish_gradients(const Step&, const Operand*, T*, T*) {}
  void add_to_dr(const Launch&, int64_t, const Operand*) {}

  const Sequence& s;
};

}  // namespace

std::vector<Kernel> rnn_kernels() {
  return recurrence_rows<RnnForward, RnnBackward>("RNN", "RNNTrain", "RNNGrad", [](const NodeSpec& spec) {
    return takes_bfloat16_backward(spec, 3, {0, 2, 3, 4});
  });
}

}  // namespace onnx_train::cpu
