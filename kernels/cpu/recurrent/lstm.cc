// LSTM, its training form and its gradient (functions/recurrent.cc has the formulas).
#include <algorithm>

#include "kernels/cpu/recurrent/gates.h"
#include "kernels/cpu/recurrent/recurrent.h"
#include "kernels/cpu/support/maps.h"
#include "onnx_passes/functions/functions.h"

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

template <typename T, typename Operand>
class LstmForward {
 public:
  explicit LstmForward(const NodeSpec& spec)
      : e_{spec.in_shape(0)[0], spec.in_shape(0)[1], spec.in_shape(2)[0], spec.in_shape(2)[2], 4},
        recurrence_(find_recurrence(spec.node())),
        order_{recurrence_.backwards, e_.steps},
        parts_(cut_batch(e_)),
        inputs_(spec),
        input_product_(e_, spec.in_shape(0)[2], inputs_.has(3), {true, true, true, true}, &workspace_),
        step_(parts_, product_with_transpose(e_, e_.gate_row(), e_.gate_stride()), e_.directions, &workspace_),
        h0_(spec, 5, e_, &workspace_),
        state_(spec, e_, parts_.size(), &workspace_),
        y_(spec, 0),
        gates_(spec, 3) {
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
    c_ = output_or_scratch(spec, 2, bytes(e_.state_size()), &workspace_);
    const size_t all = bytes(e_.samples() * e_.gate_stride());
    sums_ = gates_.is_narrow() ? workspace_.reserve(all) : output_or_scratch(spec, 3, all, &workspace_);
    keeps_cells_ = spec.num_outputs() > 4 && spec.has_output(4);
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    T* sums = static_cast<T*>(address(sums_, launch));
    const Operand* h0 = h0_.get(launch);
    input_product_.run(launch, launch.in<Operand>(0), launch.in<Operand>(1), inputs_.get<T>(launch, 3), sums);
    step_.pack(launch, launch.in<Operand>(2), e_.gate_row() * e_.hidden);
    for_each_part<T>(parts_, [&](const Part& part) { run_part(launch, part, h0, sums); });
  }

 private:
  void run_part(const Launch& launch, const Part& part, const Operand* h0, T* sums) {
    const int64_t d = part.direction, n = e_.hidden;
    const int32_t* lengths = inputs_.get<int32_t>(launch, 4);
    const LstmCell<T> cell(recurrence_, d, n, inputs_.get<T>(launch, 7));
    const Stored<T> y = y_.get(launch), gates = gates_.get(launch);
    T* cells = keeps_cells_ ? launch.out<T>(4) : nullptr;
    Operand* h = state_.start(launch, part, h0);
    T* c = static_cast<T*>(address(c_, launch));
    start_state(e_, part, inputs_.get<T>(launch, 6), c);
    for (int64_t i = 0; i < e_.steps; ++i) {
      const int64_t t = order_.step(d, i);
      step_.run(launch, part, h + e_.state(d, part.first), sums + e_.gate(t, d, part.first));
      for (int64_t b = part.first; b < part.first + part.rows; ++b) {
        T *gate = sums + e_.gate(t, d, b), *c_row = c + e_.state(d, b);
        Operand* h_row = h + e_.state(d, b);
        const bool live = is_live(lengths, t, b);
        if (live) {
          T* fresh = state_.fresh(launch, part, h_row);
          cell.forward(gate, c_row, c_row, fresh);
          state_.store(fresh, h_row);
          if (recurrence_.round_gates && !gates_.is_narrow()) to_operand(true, e_.gate_row(), gate, gate);
        }
        if (gates) gates.write(live, e_.gate(t, d, b), e_.gate_row(), gate);
        if (y) y.write(live, e_.value(t, d, b), n, h_row);
        if (cells) std::copy(c_row, c_row + n, cells + e_.value(t, d, b));
      }
    }
    state_.finish(launch, part);
  }

  Extents e_;
  Recurrence recurrence_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  InputProduct<Operand> input_product_;
  StepProduct<Operand> step_;
  FirstState<Operand> h0_;
  HiddenState<T, Operand> state_;
  StoredOutput<T> y_, gates_;
  Place c_, sums_;  // sums: gate sums, then gate values
  bool keeps_cells_ = false;
};

// ---- Backward: inputs r lens h0 c0 p y gates cells dy dy_h dy_c; outputs dgates dr dh0 dc0 dp

template <typename T, typename Operand>
class LstmBackward {
 public:
  explicit LstmBackward(const NodeSpec& spec)
      : e_{spec.in_shape(5)[0], spec.in_shape(5)[2], spec.in_shape(5)[1], spec.in_shape(5)[3], 4},
        recurrence_(find_recurrence(spec.node())),
        order_{recurrence_.backwards, e_.steps},
        parts_(cut_batch(e_)),
        inputs_(spec),
        step_(parts_, product_with_rows(e_, e_.gate_row(), e_.gate_stride()), e_.directions, &workspace_),
        dr_(e_, e_.gate_row(), e_.gate_stride(), &workspace_),
        h0_(spec, 2, e_, &workspace_),
        c0_(spec, 3, e_, &workspace_),
        keeps_dr_(spec.num_outputs() > 1 && spec.has_output(1)),
        keeps_dp_(spec.num_outputs() > 4 && spec.has_output(4)) {
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
    dh_ = output_or_scratch(spec, 2, bytes(e_.state_size()), &workspace_);
    dc_ = output_or_scratch(spec, 3, bytes(e_.state_size()), &workspace_);
    rows_ = workspace_.reserve(parts_.size() * bytes(2 * e_.gate_row() + e_.hidden));
    if (keeps_dr_) {
      h_before_ = workspace_.reserve(static_cast<size_t>(e_.steps * e_.state_size()) * sizeof(Operand));
    }
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    const Operand *h0 = h0_.get(launch), *y = launch.in<Operand>(5);
    const T* c0 = c0_.get(launch);
    Operand* h_before = keeps_dr_ ? static_cast<Operand*>(address(h_before_, launch)) : nullptr;
    step_.pack(launch, launch.in<Operand>(0), e_.gate_row() * e_.hidden);
    for_each_part<T>(parts_, [&](const Part& part) {
      run_part(launch, part, c0);
      if (h_before) copy_h_before(e_, order_, part, inputs_.get<int32_t>(launch, 1), y, h0, h_before);
    });
    for (int64_t d = 0; keeps_dr_ && d < e_.directions; ++d) {
      dr_.run(launch, launch.out<Operand>(0) + d * e_.gate_row(), h_before + d * e_.samples() * e_.hidden,
              launch.out<T>(1) + d * e_.gate_row() * e_.hidden);
    }
    if (keeps_dp_) sum_peepholes(launch, c0);
  }

 private:
  void run_part(const Launch& launch, const Part& part, const T* c0) {
    const int64_t d = part.direction, n = e_.hidden;
    const int32_t* lengths = inputs_.get<int32_t>(launch, 1);
    const LstmCell<T> cell(recurrence_, d, n, inputs_.get<T>(launch, 4));
    const Stored<T> gates = inputs_.stored<T>(launch, 6), dy = inputs_.stored<T>(launch, 8);
    const T* cells = launch.in<T>(7);
    Operand* dgates = launch.out<Operand>(0);
    T *dh = static_cast<T*>(address(dh_, launch)), *dc = static_cast<T*>(address(dc_, launch));
    T* gate_row = static_cast<T*>(address(rows_, launch)) + static_cast<int64_t>(part.index) * (2 * e_.gate_row() + n);
    T *dgate_row = gate_row + e_.gate_row(), *dy_row = dgate_row + e_.gate_row();
    start_state(e_, part, inputs_.get<T>(launch, 9), dh);
    start_state(e_, part, inputs_.get<T>(launch, 10), dc);
    for (int64_t i = e_.steps; i-- > 0;) {
      const int64_t t = order_.step(d, i);
      for (int64_t b = part.first; b < part.first + part.rows; ++b) {
        Operand* dgate = dgates + e_.gate(t, d, b);
        T* dh_row = dh + e_.state(d, b);
        if (!is_live(lengths, t, b)) {
          std::fill(dgate, dgate + e_.gate_row(), Operand{});
          continue;
        }
        if (dy) add(n, dy.read(e_.value(t, d, b), n, dy_row), dh_row);
        const T* gate = gates.read(e_.gate(t, d, b), e_.gate_row(), gate_row);
        cell.backward(gate, cells + e_.value(t, d, b), cell_before(t, d, b, cells, c0), dh_row, dc + e_.state(d, b),
                      dgate_row);
        to_operand(recurrence_.round_operands, e_.gate_row(), dgate_row, dgate);
        std::fill(dh_row, dh_row + n, T{0});
      }
      // Samples without this step have dgates of zero and add nothing.
      step_.run(launch, part, dgates + e_.gate(t, d, part.first), dh + e_.state(d, part.first));
    }
  }

  const T* cell_before(int64_t t, int64_t d, int64_t b, const T* cells, const T* c0) const {
    return order_.is_first(d, t) ? c0 + e_.state(d, b) : cells + e_.value(order_.before(d, t), d, b);
  }

  // dp = Σ over steps and samples of di c_before, do c, df c_before
  void sum_peepholes(const Launch& launch, const T* c0) const {
    const Operand* dgates = launch.out<Operand>(0);
    const T* cells = launch.in<T>(7);
    const int64_t n = e_.hidden;
    std::fill_n(launch.out<T>(4), e_.directions * 3 * n, T{0});
    for (int64_t d = 0; d < e_.directions; ++d) {
      T* dp = launch.out<T>(4) + d * 3 * n;
      for (int64_t t = 0; t < e_.steps; ++t) {
        for (int64_t b = 0; b < e_.batch; ++b) {
          const Operand* dgate = dgates + e_.gate(t, d, b);
          const T *before = cell_before(t, d, b, cells, c0), *c = cells + e_.value(t, d, b);
          for (int64_t j = 0; j < n; ++j) {
            dp[j] += math::convert<T>(dgate[j]) * before[j];
            dp[n + j] += math::convert<T>(dgate[n + j]) * c[j];
            dp[2 * n + j] += math::convert<T>(dgate[2 * n + j]) * before[j];
          }
        }
      }
    }
  }

  Extents e_;
  Recurrence recurrence_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  StepProduct<Operand> step_;
  OuterProduct<Operand> dr_;
  FirstState<Operand> h0_;
  FirstState<T> c0_;
  bool keeps_dr_, keeps_dp_;
  Place dh_, dc_, h_before_, rows_;  // rows, for each part: gates, dgates and dy of one sample
};

}  // namespace

std::vector<Kernel> lstm_kernels() {
  const auto takes_bfloat16_gradient = [](const NodeSpec& spec) {
    return takes_bfloat16_backward(spec, 5, {0, 2, 5, 6, 8});
  };
  return {
      {"LSTM", takes_recurrence, prepare_recurrence<LstmForward>},
      {"LSTMTrain", takes_recurrence, prepare_recurrence<LstmForward>, kDomain},
      {"LSTMGrad", takes_recurrence, prepare_recurrence<LstmBackward>, kDomain},
      {"LSTMTrain", takes_bfloat16_forward, prepare_recurrence<LstmForward>, kDomain},
      {"LSTMGrad", takes_bfloat16_gradient, prepare_recurrence<LstmBackward>, kDomain},
  };
}

}  // namespace onnx_train::cpu
