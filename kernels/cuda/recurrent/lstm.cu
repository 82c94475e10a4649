// LSTM, its training form and its gradient (functions/recurrent.cc has the formulas). The four gates of a unit, i o f
// c, are n elements apart.
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/walk.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
struct LstmCell {
  GateActivation f, g, h;
  bool input_forget;  // the forget gate is 1 - the input gate
  const T* p;         // peepholes [3 H] of i o f, or null

  LstmCell(const Sequence& s, int64_t d, const T* peepholes)
      : f(s.recurrence.activation(d, 0)),
        g(s.recurrence.activation(d, 1)),
        h(s.recurrence.activation(d, 2)),
        input_forget(s.recurrence.input_forget),
        p(peepholes ? peepholes + d * 3 * s.e.hidden : nullptr) {}
};

// ---- Forward: inputs x w r b lens h0 c0 p; outputs y y_h y_c and, in training, gates and cells

template <typename T>
__global__ void lstm_step(CellStep s, LstmCell<T> cell, bool keeps_gates, T* gates, T* h, T* c, T* y, T* cells) {
  const CellElement at(s);
  if (!at.exists) return;
  const int64_t n = s.n(), j = at.i - s.hidden.quotient(at.i) * n;
  T* const gate = gates + at.gate;
  T i = 0, o = 0, f = 0, g = 0, now = 0;
  if (at.live) {
    const T before = c[at.i];
    const auto peephole = [&](int64_t k, T with) { return cell.p ? cell.p[k * n + j] * with : T{0}; };
    i = activate(cell.f, s.clip, gate[0] + peephole(0, before));
    f = cell.input_forget ? T{1} - i : activate(cell.f, s.clip, gate[2 * n] + peephole(2, before));
    g = activate(cell.g, s.clip, gate[3 * n]);
    const T after = f * before + i * g;
    o = activate(cell.f, s.clip, gate[n] + peephole(1, after));
    now = rounded(s.rounds_operands, o * activate(cell.h, s.clip, after));
    c[at.i] = after;
    h[at.i] = now;
  }
  if (keeps_gates) {
    gate[0] = rounded(s.rounds_gates, i), gate[n] = rounded(s.rounds_gates, o);
    gate[2 * n] = rounded(s.rounds_gates, f), gate[3 * n] = rounded(s.rounds_gates, g);
  }
  if (y) y[at.i] = now;
  if (cells) cells[at.i] = c[at.i];
}

template <typename T>
class LstmForward {
 public:
  static constexpr int kStepGates = 4, kGates = 3;

  LstmForward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s), c_(output_or_scratch(spec, 2, static_cast<size_t>(s.e.state_size()) * sizeof(T), workspace)) {}
  size_t workspace() const { return 0; }
  void start(const Launch& launch) const {
    start_state(launch, s_.e, s_.in<T>(launch, 6), static_cast<T*>(address(c_, launch)));
  }
  void step(const Launch& launch, const CellStep& step, const ForwardRows<T>& now) const {
    T *const c = static_cast<T*>(address(c_, launch)) + s_.e.state(now.d, 0), *const cells = s_.out<T>(launch, 4);
    enqueue(launch, "lstm_step", lstm_step<T>, s_.blocks(), kThreads, 0, step,
            LstmCell<T>(s_, now.d, s_.in<T>(launch, 7)), now.keeps_gates, now.gates, now.h, c, now.y,
            cells ? cells + s_.e.value(now.t, now.d, 0) : nullptr);
  }

 private:
  const Sequence& s_;
  const OperandPlace c_;
};

// ---- Backward: inputs r lens h0 c0 p y gates cells dy dy_h dy_c; outputs dgates dr dh0 dc0 dp

// `before` is c of the step before, or null if that is zero.
template <typename T>
__global__ void lstm_gradient_step(CellStep s, LstmCell<T> cell, const T* gates, const T* cells, const T* before,
                                   const T* dy, T* dh, T* dc, T* dgates) {
  const CellElement at(s);
  if (!at.exists) return;
  const int64_t n = s.n(), j = at.i - s.hidden.quotient(at.i) * n;
  T di = 0, d_o = 0, df = 0, dg = 0;
  if (at.live) {
    const T* const gate = gates + at.gate;
    const T i = gate[0], o = gate[n], f = gate[2 * n], g = gate[3 * n];
    const T c_before = before ? before[at.i] : T{0};
    const T total = dy ? dh[at.i] + dy[at.i] : dh[at.i];
    const T h_of_c = activate(cell.h, 0.0f, cells[at.i]);
    d_o = differentiate(cell.f, o, total * h_of_c);
    T to_c = dc[at.i] + differentiate(cell.h, h_of_c, total * o);
    if (cell.p) to_c += cell.p[n + j] * d_o;
    dg = differentiate(cell.g, g, to_c * i);
    di = differentiate(cell.f, i, cell.input_forget ? to_c * g - to_c * c_before : to_c * g);
    if (!cell.input_forget) df = differentiate(cell.f, f, to_c * c_before);
    T to_before = to_c * f;
    if (cell.p) to_before += cell.p[j] * di + cell.p[2 * n + j] * df;
    dc[at.i] = to_before;
    dh[at.i] = 0;
  }
  T* const dgate = dgates + at.gate;
  const bool rounds = s.rounds_operands;
  dgate[0] = rounded(rounds, di), dgate[n] = rounded(rounds, d_o);
  dgate[2 * n] = rounded(rounds, df), dgate[3 * n] = rounded(rounds, dg);
}

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

  LstmBackward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s), dc_(output_or_scratch(spec, 3, static_cast<size_t>(s.e.state_size()) * sizeof(T), workspace)) {}
  size_t workspace() const { return 0; }
  void start(const Launch& launch) const {
    start_state(launch, s_.e, s_.in<T>(launch, kDy + 2), static_cast<T*>(address(dc_, launch)));
  }
  void step(const Launch& launch, const CellStep& step, const BackwardRows<T>& now) const {
    const Extents& e = s_.e;
    const int64_t t = now.t, d = now.d;
    const T *cells = launch.in<T>(7), *c0 = s_.in<T>(launch, 3);
    const T* before = cells + e.value(s_.order.before(d, t), d, 0);
    if (s_.order.is_first(d, t)) before = c0 ? c0 + e.state(d, 0) : nullptr;
    enqueue(launch, "lstm_gradient_step", lstm_gradient_step<T>, s_.blocks(), kThreads, 0, step,
            LstmCell<T>(s_, d, s_.in<T>(launch, 4)), launch.in<T>(6) + e.gate(t, d, 0), cells + e.value(t, d, 0),
            before, now.dy, now.dh, static_cast<T*>(address(dc_, launch)) + e.state(d, 0), now.dgates);
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
