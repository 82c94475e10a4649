// LSTM, its training form and its gradient (functions/recurrent.cc has the formulas).
#include <algorithm>

#include "kernels/cpu/recurrent/gates.h"
#include "kernels/cpu/recurrent/walk.h"
#include "kernels/cpu/support/maps.h"

namespace onnx_train::cpu {
namespace {

// The cell of one sample in one step. Operands are rows of `n` elements; gates are four such rows: i o f c.
template <typename T>
class LstmCell {
 public:
  LstmCell(const Recurrence& recurrence, int64_t direction, int64_t n, const T* peepholes)
      : f_(recurrence.activation(direction, 0)),
        g_(recurrence.activation(direction, 1)),
        h_(recurrence.activation(direction, 2)),
        limit_(recurrence.clip),
        input_forget_(recurrence.input_forget),
        n_(n),
        p_(peepholes ? peepholes + direction * 3 * n : nullptr) {}

  // On entry `gates` holds the gate sums, on return the gate values; c may be c_before.
  void forward(T* gates, const T* c_before, T* c, T* h) const {
    const int64_t n = n_;
    T *i = gates, *o = gates + n, *f = gates + 2 * n, *g = gates + 3 * n;
    if (p_) {
      add_product(p_, c_before, i);
      add_product(p_ + 2 * n, c_before, f);
      activate(f_, limit_, n, i, i);
      activate(f_, limit_, n, f, f);
    } else {
      activate(f_, limit_, 3 * n, i, i);
    }
    if (input_forget_) map(n, i, f, [](T v) { return T{1} - v; });
    activate(g_, limit_, n, g, g);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) c[j] = f[j] * c_before[j] + i[j] * g[j];
    });
    if (p_) {
      add_product(p_ + n, c, o);
      activate(f_, limit_, n, o, o);
    }
    activate(h_, limit_, n, c, h);
    map(n, h, true, o, true, h, [](T a, T b) { return a * b; });
  }

  // Given dh and dc, replaces dc by the gradient of c_before and writes the gradients of the gate sums to `dgates`.
  void backward(const T* gates, const T* c, const T* c_before, const T* dh, T* dc, T* dgates) const {
    const int64_t n = n_;
    const T *i = gates, *o = gates + n, *f = gates + 2 * n, *g = gates + 3 * n;
    T *di = dgates, *doo = dgates + n, *df = dgates + 2 * n, *dg = dgates + 3 * n;
    activate(h_, 0.0f, n, c, dg);  // h(c), stored here until dg is needed
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        doo[j] = dh[j] * dg[j];
        df[j] = dh[j] * o[j];
      }
    });
    differentiate(f_, n, o, doo);
    differentiate(h_, n, dg, df);
    const T* p_o = p_ ? p_ + n : nullptr;
    const bool input_forget = input_forget_;
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        const T through = dc[j] + df[j];
        const T all = p_o ? through + p_o[j] * doo[j] : through;
        dg[j] = all * i[j];
        df[j] = input_forget ? T{0} : all * c_before[j];
        di[j] = input_forget ? all * g[j] - all * c_before[j] : all * g[j];
        dc[j] = all * f[j];
      }
    });
    differentiate(g_, n, g, dg);
    differentiate(f_, n, i, di);
    if (!input_forget) differentiate(f_, n, f, df);
    if (!p_) return;
    add_product(p_, di, dc);
    add_product(p_ + 2 * n, df, dc);
  }

 private:
  // y += a b, element by element.
  void add_product(const T* a, const T* b, T* y) const {
    const int64_t n = n_;
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) y[j] += a[j] * b[j];
    });
  }

  GateActivation f_, g_, h_;
  float limit_;
  bool input_forget_;
  int64_t n_;
  const T* p_;
};

// ---- Forward: inputs x w r b lens h0 c0 p; outputs y y_h y_c and, in training, gates and cells

template <typename Type, typename OperandType>
class LstmForward {
 public:
  using T = Type;
  using Operand = OperandType;
  static constexpr int kStepGates = 4, kGates = 3;
  static constexpr bool kReadsState = false;

  LstmForward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s),
        c_(output_or_scratch(spec, 2, static_cast<size_t>(s.e.state_size()) * sizeof(T), workspace)),
        keeps_cells_(spec.num_outputs() > 4 && spec.has_output(4)) {}
  void begin(const Launch&) {}
  void start(const Step& step) {
    start_state(s_.e, step.part, s_.inputs.template get<T>(step.launch, 6), static_cast<T*>(address(c_, step.launch)));
  }
  void finish_sums(const Step&, const Operand*, T*) {}
  void forward(const Step& step, T* gate, T* h) {
    const T* peepholes = s_.inputs.template get<T>(step.launch, 7);
    T* c = cell(step);
    LstmCell<T>(s_.recurrence, step.d(), s_.e.hidden, peepholes).forward(gate, c, c, h);
  }
  void store(const Step& step, bool) {
    if (!keeps_cells_) return;
    const T* c = cell(step);
    std::copy(c, c + s_.e.hidden, step.launch.template out<T>(4) + s_.e.value(step.t, step.d(), step.b));
  }

 private:
  T* cell(const Step& step) const { return static_cast<T*>(address(c_, step.launch)) + s_.e.state(step.d(), step.b); }

  const Sequence& s_;
  OperandPlace c_;
  bool keeps_cells_;
};

// ---- Backward: inputs r lens h0 c0 p y gates cells dy dy_h dy_c; outputs dgates dr dh0 dc0 dp

template <typename Type, typename OperandType>
class LstmBackward {
 public:
  using T = Type;
  using Operand = OperandType;
  static constexpr int kStepGates = 4, kY = 5, kDy = 8;
  static constexpr bool kNeedsStates = false;

  LstmBackward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s),
        c0_(spec, 3, s.e, workspace),
        dc_(output_or_scratch(spec, 3, static_cast<size_t>(s.e.state_size()) * sizeof(T), workspace)),
        keeps_dp_(spec.num_outputs() > 4 && spec.has_output(4)) {}
  void begin(const Launch& launch) { first_cells_ = c0_.get(launch); }
  void end(const Launch& launch) {
    if (keeps_dp_) sum_peepholes(launch);
  }
  void start(const Step& step) {
    start_state(s_.e, step.part, s_.inputs.template get<T>(step.launch, kDy + 2),
                static_cast<T*>(address(dc_, step.launch)));
  }
  void backward(const Step& step, const Operand*, T* dh, Operand* dgate, T* rows) {
    const Extents& e = s_.e;
    const int64_t t = step.t, d = step.d(), b = step.b;
    const T* cells = step.launch.template in<T>(7);
    const Stored<T> gates = s_.inputs.template stored<T>(step.launch, 6);
    const LstmCell<T> cell(s_.recurrence, d, e.hidden, s_.inputs.template get<T>(step.launch, 4));
    T *dc = static_cast<T*>(address(dc_, step.launch)) + e.state(d, b), *dgate_row = rows + e.gate_row();
    const T* gate = gates.read(e.gate(t, d, b), e.gate_row(), rows);
    cell.backward(gate, cells + e.value(t, d, b), cell_before(t, d, b, cells), dh, dc, dgate_row);
    to_operand(s_.recurrence.round_operands, e.gate_row(), dgate_row, dgate);
    std::fill(dh, dh + e.hidden, T{0});
  }
  void skip(const Step&) {}
  void finish_gradients(const Step&, const Operand*, T*, T*) {}
  void add_to_dr(const Launch&, int64_t, const Operand*) {}

 private:
  const T* cell_before(int64_t t, int64_t d, int64_t b, const T* cells) const {
    const Extents& e = s_.e;
    return s_.order.is_first(d, t) ? first_cells_ + e.state(d, b) : cells + e.value(s_.order.before(d, t), d, b);
  }

  // dp = Σ over steps and samples of di c_before, do c, df c_before
  void sum_peepholes(const Launch& launch) const {
    const Extents& e = s_.e;
    const Operand* dgates = launch.out<Operand>(0);
    const T* cells = launch.in<T>(7);
    const int64_t n = e.hidden;
    std::fill_n(launch.out<T>(4), e.directions * 3 * n, T{0});
    for (int64_t d = 0; d < e.directions; ++d) {
      T* dp = launch.out<T>(4) + d * 3 * n;
      for (int64_t t = 0; t < e.steps; ++t) {
        for (int64_t b = 0; b < e.batch; ++b) {
          const Operand* dgate = dgates + e.gate(t, d, b);
          const T *before = cell_before(t, d, b, cells), *c = cells + e.value(t, d, b);
          for (int64_t j = 0; j < n; ++j) {
            dp[j] += math::convert<T>(dgate[j]) * before[j];
            dp[n + j] += math::convert<T>(dgate[n + j]) * c[j];
            dp[2 * n + j] += math::convert<T>(dgate[2 * n + j]) * before[j];
          }
        }
      }
    }
  }

  const Sequence& s_;
  FirstState<T> c0_;
  OperandPlace dc_;
  bool keeps_dp_;
  const T* first_cells_ = nullptr;  // c0, valid during the current run
};

}  // namespace

std::vector<Kernel> lstm_kernels() {
  return recurrence_rows<LstmForward, LstmBackward>("LSTM", "LSTMTrain", "LSTMGrad", [](const NodeSpec& spec) {
    return takes_bfloat16_backward(spec, 5, {0, 2, 5, 6, 8});
  });
}

}  // namespace onnx_train::cpu
