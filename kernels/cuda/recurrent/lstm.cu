// LSTM, its training form and its gradient (functions/recurrent.cc has the formulas). The four gates of a unit, i o f
// c, are n elements apart; the last one is called g here.
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/walk.h"

namespace onnx_train::cuda {
namespace {

// ---- Forward: inputs x w r b lens h0 c0 p; outputs y y_h y_c and, in training, gates and cells

template <typename T>
struct LstmCell : CellNode, Phases<true, GateRows{0, 4}> {
  struct Loaded {
    T sums[4];
    T h, c;
  };

  template <int>
  __device__ Loaded load(const CellElement& at) const {
    const T* const gate = gates + at.gate;
    const int64_t n = e.hidden;
    return {{gate[0], gate[n], gate[2 * n], gate[3 * n]}, h[at.state], c[at.state]};
  }
  template <int>
  __device__ OperandPart<T, 1> step(const CellElement& at, const Loaded& x) const {
    const int64_t n = e.hidden;
    const GateActivation(&of)[3] = activations[at.d];
    T i = 0, o = 0, f = 0, g = 0, after = x.c, now = x.h;
    if (at.live) {
      const auto peephole = [&](int64_t k, T with) { return p ? p[(at.d * 3 + k) * n + at.j] * with : T{0}; };
      i = activate(of[0], clip, x.sums[0] + peephole(0, x.c));
      f = input_forget ? T{1} - i : activate(of[0], clip, x.sums[2] + peephole(2, x.c));
      g = activate(of[1], clip, x.sums[3]);
      after = f * x.c + i * g;
      o = activate(of[0], clip, x.sums[1] + peephole(1, after));
      now = rounded(rounds_operands, o * activate(of[2], clip, after));
      c[at.state] = after;
      h[at.state] = now;
    }
    if (keeps_gates) {
      T* const gate = gates + at.gate;
      gate[0] = rounded(rounds_gates, i), gate[n] = rounded(rounds_gates, o);
      gate[2 * n] = rounded(rounds_gates, f), gate[3 * n] = rounded(rounds_gates, g);
    }
    if (y) y[at.value] = at.live ? now : T{0};
    if (cells) cells[at.value] = after;
    return {{now}};
  }
  __device__ OperandPart<T, 1> first_operand(const CellElement& at) const { return {{h[at.state]}}; }

  bool input_forget;  // the forget gate is 1 - the input gate
  const T* p;         // peepholes [D, 3 H] of i o f, or null
  bool keeps_gates;
  T *gates, *h, *c, *y, *cells;
};

template <typename T>
class LstmForward {
 public:
  static constexpr int kStepGates = 4, kGates = 3;
  using Cell = LstmCell<T>;

  LstmForward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s), c_(output_or_scratch(spec, 2, static_cast<size_t>(s.e.state_size()) * sizeof(T), workspace)) {}
  size_t workspace() const { return 0; }
  void start(const Launch& launch) const {
    start_state(launch, s_.e, s_.in<T>(launch, 6), static_cast<T*>(address(c_, launch)));
  }
  // Calls f(identity of the cell), and returns what it returns.
  template <typename F>
  static auto with_type(const Recurrence&, const F& f) {
    return f(std::type_identity<Cell>());
  }
  template <typename F>
  void with_cell(const Launch& launch, const ForwardValues<T>& at, const F& f) const {
    f(Cell{s_.cell_node(launch, 4),
           {},
           s_.recurrence.input_forget,
           s_.in<T>(launch, 7),
           at.keeps_gates,
           at.gates,
           at.h,
           static_cast<T*>(address(c_, launch)),
           at.y,
           s_.out<T>(launch, 4)});
  }
  void step(const Launch& launch, int64_t t, int64_t d, const ForwardValues<T>& at) const {
    with_cell(launch, at, [&](const Cell& cell) { s_.enqueue_cell<0>(launch, "lstm_step", cell, t, d); });
  }

 private:
  const Sequence& s_;
  const OperandPlace c_;
};

// ---- Backward: inputs r lens h0 c0 p y gates cells dy dy_h dy_c; outputs dgates dr dh0 dc0 dp

template <typename T>
struct LstmGradientCell : CellNode, Phases<false, GateRows{0, 4}> {
  struct Loaded {
    T sums[1];  // dh
    T dy, dc, i, o, f, g, c, c_before;
  };

  template <int>
  __device__ Loaded load(const CellElement& at) const {
    const int64_t n = e.hidden;
    const T* const gate = gates + at.gate;
    T before = 0;
    if (!order.is_first(at.d, at.t)) {
      before = cells[at.value + (order.before(at.d, at.t) - at.t) * e.state_size()];
    } else if (c0) {
      before = c0[at.state];
    }
    return {{dh[at.state]}, dy ? dy[at.value] : T{0}, dc[at.state], gate[0], gate[n], gate[2 * n],
            gate[3 * n],    cells[at.value],          before};
  }
  template <int>
  __device__ OperandPart<T, 4> step(const CellElement& at, const Loaded& x) const {
    const int64_t n = e.hidden;
    const GateActivation(&of)[3] = activations[at.d];
    T di = 0, d_o = 0, df = 0, dg = 0;
    if (at.live) {
      const T* const peepholes = p ? p + at.d * 3 * n + at.j : nullptr;
      const T total = x.sums[0] + x.dy, h_of_c = activate(of[2], 0.0f, x.c);
      d_o = differentiate(of[0], x.o, total * h_of_c);
      T to_c = x.dc + differentiate(of[2], h_of_c, total * x.o);
      if (p) to_c += peepholes[n] * d_o;
      dg = differentiate(of[1], x.g, to_c * x.i);
      di = differentiate(of[0], x.i, input_forget ? to_c * x.g - to_c * x.c_before : to_c * x.g);
      if (!input_forget) df = differentiate(of[0], x.f, to_c * x.c_before);
      T to_before = to_c * x.f;
      if (p) to_before += peepholes[0] * di + peepholes[2 * n] * df;
      dc[at.state] = to_before;
    }
    dh[at.state] = at.live ? T{0} : x.sums[0];
    const bool rounds = rounds_operands;
    const OperandPart<T, 4> all = {
        {rounded(rounds, di), rounded(rounds, d_o), rounded(rounds, df), rounded(rounds, dg)}};
    for (int k = 0; k < 4; ++k) dgates[at.gate + k * n] = all.values[k];
    return all;
  }
  __device__ void finish(const CellElement& at, const Loaded& x) const { dh[at.state] = x.sums[0]; }

  bool input_forget;
  const T *p, *gates, *cells, *c0, *dy;  // p, c0 and dy may be null
  T *dh, *dc, *dgates;
};

// dp = Σ over steps and samples of di c_before, do c, df c_before: [D, 3, H], one sum per thread.
template <typename T>
__global__ void sum_peepholes(Extents e, Order order, const T* dgates, const T* cells, const T* c0, T* dp) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= e.directions * 3 * e.hidden) return;
  const int64_t d = i / (3 * e.hidden), p = i / e.hidden - 3 * d, j = i % e.hidden;
  T sum = 0;
  for (int64_t t = 0; t < e.steps; ++t) {
    const bool first = order.is_first(d, t);
    for (int64_t b = 0; b < e.batch; ++b) {
      const int64_t state = e.state(d, b) + j;
      const T before = first ? (c0 ? c0[state] : T{0}) : cells[e.value(order.before(d, t), d, b) + j];
      sum += dgates[e.gate(t, d, b) + p * e.hidden + j] * (p == 1 ? cells[e.value(t, d, b) + j] : before);
    }
  }
  dp[i] = sum;
}

template <typename T>
class LstmBackward {
 public:
  static constexpr int kStepGates = 4, kY = 5, kDy = 8;
  static constexpr bool kNeedsStates = false;
  using Cell = LstmGradientCell<T>;

  LstmBackward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s), dc_(output_or_scratch(spec, 3, static_cast<size_t>(s.e.state_size()) * sizeof(T), workspace)) {}
  size_t workspace() const { return 0; }
  void start(const Launch& launch) const {
    start_state(launch, s_.e, s_.in<T>(launch, kDy + 2), static_cast<T*>(address(dc_, launch)));
  }
  // Calls f(identity of the cell), and returns what it returns.
  template <typename F>
  static auto with_type(const Recurrence&, const F& f) {
    return f(std::type_identity<Cell>());
  }
  template <typename F>
  void with_cell(const Launch& launch, const BackwardValues<T>& at, const F& f) const {
    f(Cell{s_.cell_node(launch, 1),
           {},
           s_.recurrence.input_forget,
           s_.in<T>(launch, 4),
           launch.in<T>(6),
           launch.in<T>(7),
           s_.in<T>(launch, 3),
           at.dy,
           at.dh,
           static_cast<T*>(address(dc_, launch)),
           at.dgates});
  }
  void step(const Launch& launch, int64_t t, int64_t d, const BackwardValues<T>& at) const {
    with_cell(launch, at, [&](const Cell& cell) { s_.enqueue_cell<0>(launch, "lstm_gradient_step", cell, t, d); });
  }
  void finish(const Launch& launch, const T*, void*) const {
    T* const dp = s_.out<T>(launch, 4);
    const int64_t sums = s_.e.directions * 3 * s_.e.hidden;
    if (!dp || sums == 0) return;
    enqueue(launch, "sum_peepholes", sum_peepholes<T>, blocks_for(sums), kThreads, 0, s_.e, s_.order, launch.out<T>(0),
            launch.in<T>(7), s_.in<T>(launch, 3), dp);
  }

 private:
  const Sequence& s_;
  const OperandPlace dc_;
};

}  // namespace

std::vector<Kernel> lstm_kernels() {
  return recurrence_rows<LstmForward, LstmBackward>("LSTM", "LSTMTrain", "LSTMGrad");
}

}  // namespace onnx_train::cuda
