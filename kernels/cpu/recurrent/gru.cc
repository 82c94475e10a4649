// GRU, its training form and its gradient (functions/recurrent.cc has the formulas). The product with R is two
// products: one for the gates z and r, and one for g. The latter multiplies r h if the reset gate applies before the
// product, and h if it applies after it (linear_before_reset).
#include "kernels/cpu/recurrent/gates.h"
#include "kernels/cpu/recurrent/recurrent.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Inputs x w r b lens h0; outputs y y_h and, in training, gates and candidates.
template <typename T, typename Operand>
class GruForward {
 public:
  explicit GruForward(const NodeSpec& spec)
      : e_{spec.in_shape(0)[0], spec.in_shape(0)[1], spec.in_shape(2)[0], spec.in_shape(2)[2], 3},
        recurrence_(find_recurrence(spec.node())),
        linear_(recurrence_.linear_before_reset),
        order_{recurrence_.backwards, e_.steps},
        parts_(cut_batch(e_)),
        inputs_(spec),
        input_product_(e_, spec.in_shape(0)[2], inputs_.has(3), {true, true, !linear_}, &workspace_),
        zr_(parts_, product_with_transpose(e_, 2 * e_.hidden, e_.gate_stride()), e_.directions, &workspace_),
        g_(parts_, product_with_transpose(e_, e_.hidden, linear_ ? e_.hidden : e_.gate_stride(), !linear_),
           e_.directions, &workspace_),
        h0_(spec, 5, e_, &workspace_),
        state_(spec, e_, parts_.size(), &workspace_),
        y_(spec, 0),
        gates_(spec, 2),
        candidates_(spec, 3) {
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
    const size_t all = bytes(e_.samples() * e_.gate_stride());
    sums_ = gates_.is_narrow() ? workspace_.reserve(all) : output_or_scratch(spec, 2, all, &workspace_);
    beside_ = workspace_.reserve(bytes(e_.state_size()));
    reset_ = std::is_same_v<T, Operand> ? beside_ : workspace_.reserve(bytes(e_.state_size()));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    T* sums = static_cast<T*>(address(sums_, launch));
    const Operand *r = launch.in<Operand>(2), *h0 = h0_.get(launch);
    const int64_t matrix = e_.gate_row() * e_.hidden;
    input_product_.run(launch, launch.in<Operand>(0), launch.in<Operand>(1), inputs_.get<T>(launch, 3), sums);
    zr_.pack(launch, r, matrix);
    g_.pack(launch, r + 2 * e_.hidden * e_.hidden, matrix);
    for_each_part<T>(parts_, [&](const Part& part) { run_part(launch, part, h0, sums); });
  }

 private:
  void run_part(const Launch& launch, const Part& part, const Operand* h0, T* sums) {
    const int64_t d = part.direction, n = e_.hidden, first = part.first;
    const int32_t* lengths = inputs_.get<int32_t>(launch, 4);
    const T* b_of_g = inputs_.has(3) ? inputs_.get<T>(launch, 3) + d * 6 * n + 5 * n : nullptr;
    Operand *h = state_.start(launch, part, h0), *reset = static_cast<Operand*>(address(reset_, launch));
    T* beside = static_cast<T*>(address(beside_, launch));
    for (int64_t i = 0; i < e_.steps; ++i) {
      const int64_t t = order_.step(d, i);
      zr_.run(launch, part, h + e_.state(d, first), sums + e_.gate(t, d, first));
      if (linear_) g_.run(launch, part, h + e_.state(d, first), beside + e_.state(d, first));
      for (int64_t b = first; b < first + part.rows; ++b) {
        T *gate = sums + e_.gate(t, d, b), *beside_row = beside + e_.state(d, b);
        open_gates(d, gate, h + e_.state(d, b), b_of_g, beside_row);
        if (!linear_) to_operand(recurrence_.round_operands, n, beside_row, reset + e_.state(d, b));
      }
      if (!linear_) g_.run(launch, part, reset + e_.state(d, first), sums + e_.gate(t, d, first) + 2 * n);
      for (int64_t b = first; b < first + part.rows; ++b) {
        const bool live = is_live(lengths, t, b);
        Operand* h_row = h + e_.state(d, b);
        if (live) {
          T* now = state_.load(launch, part, h_row);
          renew(d, sums + e_.gate(t, d, b), now);
          state_.store(now, h_row);
        }
        store(launch, live, t, d, b, h_row, sums + e_.gate(t, d, b), beside + e_.state(d, b));
      }
    }
    state_.finish(launch, part);
  }

  // Computes z and r, then the sum of g or the operand of its product with R.
  void open_gates(int64_t d, T* gate, const Operand* h, const T* b_of_g, T* beside) const {
    const int64_t n = e_.hidden;
    activate(recurrence_.activation(d, 0), recurrence_.clip, 2 * n, gate, gate);
    const T* r = gate + n;
    T* g = gate + 2 * n;
    if (!linear_) {
      vectorized([=] {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) beside[j] = r[j] * math::convert<T>(h[j]);
      });
      return;
    }
    if (b_of_g) add(n, b_of_g, beside);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) g[j] += r[j] * beside[j];
    });
  }

  void renew(int64_t d, T* gate, T* h) const {
    const int64_t n = e_.hidden;
    const T* z = gate;
    T* g = gate + 2 * n;
    activate(recurrence_.activation(d, 1), recurrence_.clip, n, g, g);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) h[j] = (T{1} - z[j]) * g[j] + z[j] * h[j];
    });
  }

  void store(const Launch& launch, bool live, int64_t t, int64_t d, int64_t b, const Operand* h, T* gate,
             T* beside) const {
    const int64_t n = e_.hidden;
    if (recurrence_.round_gates) {
      if (!gates_.is_narrow()) to_operand(true, e_.gate_row(), gate, gate);
      if (!candidates_.is_narrow()) to_operand(true, n, beside, beside);
    }
    if (const Stored<T> gates = gates_.get(launch)) gates.write(live, e_.gate(t, d, b), e_.gate_row(), gate);
    if (const Stored<T> y = y_.get(launch)) y.write(live, e_.value(t, d, b), n, h);
    if (const Stored<T> candidates = candidates_.get(launch)) candidates.write(live, e_.value(t, d, b), n, beside);
  }

  Extents e_;
  Recurrence recurrence_;
  bool linear_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  InputProduct<Operand> input_product_;
  StepProduct<Operand> zr_, g_;
  FirstState<Operand> h0_;
  HiddenState<T, Operand> state_;
  StoredOutput<T> y_, gates_, candidates_;
  Place sums_, beside_, reset_;  // sums: gate sums, then gate values; beside: h Rᵀ + b of g, or r h
};

// Inputs r lens h0 y gates candidates dy dy_h; outputs dgates dr dh0 dn.
template <typename T, typename Operand>
class GruBackward {
 public:
  explicit GruBackward(const NodeSpec& spec)
      : e_{spec.in_shape(3)[0], spec.in_shape(3)[2], spec.in_shape(3)[1], spec.in_shape(3)[3], 3},
        recurrence_(find_recurrence(spec.node())),
        linear_(recurrence_.linear_before_reset),
        order_{recurrence_.backwards, e_.steps},
        parts_(cut_batch(e_)),
        inputs_(spec),
        zr_(parts_, product_with_rows(e_, 2 * e_.hidden, e_.gate_stride()), e_.directions, &workspace_),
        g_(parts_, product_with_rows(e_, e_.hidden, g_stride(), linear_), e_.directions, &workspace_),
        dr_zr_(e_, 2 * e_.hidden, e_.gate_stride(), &workspace_),
        dr_g_(e_, e_.hidden, g_stride(), &workspace_),
        h0_(spec, 2, e_, &workspace_) {
    const auto operands = [](int64_t count) { return static_cast<size_t>(count) * sizeof(Operand); };
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
    dh_ = output_or_scratch(spec, 2, bytes(e_.state_size()), &workspace_);
    h_before_ = workspace_.reserve(operands(e_.steps * e_.state_size()));
    rows_ = workspace_.reserve(parts_.size() * bytes(kRows * e_.hidden));
    if (linear_) {
      dn_ = output_or_scratch(spec, 3, operands(e_.steps * e_.state_size()), &workspace_);
    } else {
      reset_ = workspace_.reserve(operands(e_.steps * e_.state_size()));
      to_reset_ = workspace_.reserve(bytes(e_.state_size()));
    }
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    const Operand *r = launch.in<Operand>(0), *h0 = h0_.get(launch);
    const int64_t n = e_.hidden, matrix = e_.gate_row() * n;
    Operand* h_before = static_cast<Operand*>(address(h_before_, launch));
    zr_.pack(launch, r, matrix);
    g_.pack(launch, r + 2 * n * n, matrix);
    for_each_part<T>(parts_, [&](const Part& part) {
      copy_h_before(e_, order_, part, inputs_.get<int32_t>(launch, 1), launch.in<Operand>(3), h0, h_before);
      run_part(launch, part, h_before);
    });
    if (!launch.out<T>(1)) return;
    for (int64_t d = 0; d < e_.directions; ++d) {
      const int64_t sequence = d * e_.samples() * n;
      T* dr = launch.out<T>(1) + d * matrix;
      const Operand* dgates = launch.out<Operand>(0) + d * e_.gate_row();
      dr_zr_.run(launch, dgates, h_before + sequence, dr);
      if (linear_) {
        dr_g_.run(launch, dn(launch) + d * n, h_before + sequence, dr + 2 * n * n);
      } else {
        dr_g_.run(launch, dgates + 2 * n, static_cast<Operand*>(address(reset_, launch)) + sequence, dr + 2 * n * n);
      }
    }
  }

 private:
  // Distance between samples of the tensor that g's rows of R are multiplied by: dn, or dg within the gates.
  int64_t g_stride() const { return linear_ ? e_.directions * e_.hidden : e_.gate_stride(); }
  int64_t dn_at(int64_t t, int64_t d, int64_t b) const { return ((t * e_.batch + b) * e_.directions + d) * e_.hidden; }
  Operand* dn(const Launch& launch) const { return static_cast<Operand*>(address(dn_, launch)); }
  // Rows of n elements per part: three of gates, three of dgates, one of dy, candidates or dn.
  static constexpr int64_t kRows = 7;
  T* rows(const Launch& launch, const Part& part) const {
    return static_cast<T*>(address(rows_, launch)) + static_cast<int64_t>(part.index) * kRows * e_.hidden;
  }
  void keep(int64_t n, const T* from, Operand* to) const { to_operand(recurrence_.round_operands, n, from, to); }

  void run_part(const Launch& launch, const Part& part, const Operand* h_before) {
    const int64_t d = part.direction, n = e_.hidden, first = part.first;
    const int32_t* lengths = inputs_.get<int32_t>(launch, 1);
    const Stored<T> dy = inputs_.stored<T>(launch, 6);
    Operand* dgates = launch.out<Operand>(0);
    T *dh = static_cast<T*>(address(dh_, launch)), *dy_row = rows(launch, part) + 6 * n;
    start_state(e_, part, inputs_.get<T>(launch, 7), dh);
    for (int64_t i = e_.steps; i-- > 0;) {
      const int64_t t = order_.step(d, i);
      const Operand* before = h_before + (d * e_.steps + t) * e_.batch * n;
      for (int64_t b = first; b < first + part.rows; ++b) {
        const bool live = is_live(lengths, t, b);
        if (live && dy) add(n, dy.read(e_.value(t, d, b), n, dy_row), dh + e_.state(d, b));
        if (live) undo_cell(launch, part, t, b, before + b * n, dh + e_.state(d, b));
        if (live) continue;
        std::fill_n(dgates + e_.gate(t, d, b), e_.gate_row(), Operand{});
        if (linear_) std::fill_n(dn(launch) + dn_at(t, d, b), n, Operand{});
      }
      undo_product_of_g(launch, part, t, before, lengths, dh);
      // Samples without this step have dgates of zero and add nothing.
      zr_.run(launch, part, dgates + e_.gate(t, d, first), dh + e_.state(d, first));
    }
  }

  // Computes dz, dg and, with linear_before_reset, dr and dn; dh keeps the part of the gradient that bypasses the cell.
  void undo_cell(const Launch& launch, const Part& part, int64_t t, int64_t b, const Operand* before, T* dh) const {
    const int64_t d = part.direction, n = e_.hidden;
    T *buffer = rows(launch, part), *dz = buffer + 3 * n, *dr = dz + n, *dg = dr + n, *beside = dg + n;
    const T* z = inputs_.stored<T>(launch, 4).read(e_.gate(t, d, b), 3 * n, buffer);
    const T *r = z + n, *g = r + n;
    Operand* dgate = launch.out<Operand>(0) + e_.gate(t, d, b);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        dg[j] = dh[j] * (T{1} - z[j]);
        dz[j] = dh[j] * (math::convert<T>(before[j]) - g[j]);
        dh[j] *= z[j];
      }
    });
    differentiate(recurrence_.activation(d, 1), n, g, dg);
    differentiate(recurrence_.activation(d, 0), n, z, dz);
    keep(n, dz, dgate), keep(n, dg, dgate + 2 * n);
    if (!linear_) return;
    const T* candidate = inputs_.stored<T>(launch, 5).read(e_.value(t, d, b), n, beside);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        dr[j] = dg[j] * candidate[j];
        beside[j] = dg[j] * r[j];
      }
    });
    differentiate(recurrence_.activation(d, 0), n, r, dr);
    keep(n, dr, dgate + n), keep(n, beside, dn(launch) + dn_at(t, d, b));
  }

  // dh += dn R; or with q = dg R: dr = f' q h_before, dh += q r, and r h_before is stored for the gradient of R.
  void undo_product_of_g(const Launch& launch, const Part& part, int64_t t, const Operand* before,
                         const int32_t* lengths, T* dh) {
    const int64_t d = part.direction, n = e_.hidden, first = part.first;
    if (linear_) return g_.run(launch, part, dn(launch) + dn_at(t, d, first), dh + e_.state(d, first));
    Operand* dgates = launch.out<Operand>(0);
    T* to_reset = static_cast<T*>(address(to_reset_, launch));
    T *buffer = rows(launch, part), *dr = buffer + n, *kept = dr + n;
    g_.run(launch, part, dgates + e_.gate(t, d, first) + 2 * n, to_reset + e_.state(d, first));
    for (int64_t b = first; b < first + part.rows; ++b) {
      Operand* reset = static_cast<Operand*>(address(reset_, launch)) + ((d * e_.steps + t) * e_.batch + b) * n;
      if (!is_live(lengths, t, b)) {
        std::fill_n(reset, n, Operand{});
        continue;
      }
      const T *r = inputs_.stored<T>(launch, 4).read(e_.gate(t, d, b) + n, n, buffer), *q = to_reset + e_.state(d, b);
      const Operand* h = before + b * n;
      T* dh_row = dh + e_.state(d, b);
      vectorized([=] {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
          dr[j] = q[j] * math::convert<T>(h[j]);
          dh_row[j] += q[j] * r[j];
          kept[j] = r[j] * math::convert<T>(h[j]);
        }
      });
      differentiate(recurrence_.activation(d, 0), n, r, dr);
      keep(n, dr, dgates + e_.gate(t, d, b) + n), keep(n, kept, reset);
    }
  }

  Extents e_;
  Recurrence recurrence_;
  bool linear_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  StepProduct<Operand> zr_, g_;
  OuterProduct<Operand> dr_zr_, dr_g_;
  FirstState<Operand> h0_;
  Place dh_, h_before_, dn_, reset_, to_reset_, rows_;
};

}  // namespace

std::vector<Kernel> gru_kernels() {
  const auto takes_bfloat16_gradient = [](const NodeSpec& spec) {
    const bool takes_dn = spec.num_outputs() < 4 || !spec.has_output(3) || spec.out_type(3) == DType::kBFloat16;
    return takes_bfloat16_backward(spec, 3, {0, 2, 3, 4, 5, 6}) && takes_dn;
  };
  return {
      {"GRU", takes_recurrence, prepare_recurrence<GruForward>},
      {"GRUTrain", takes_recurrence, prepare_recurrence<GruForward>, kDomain},
      {"GRUGrad", takes_recurrence, prepare_recurrence<GruBackward>, kDomain},
      {"GRUTrain", takes_bfloat16_forward, prepare_recurrence<GruForward>, kDomain},
      {"GRUGrad", takes_bfloat16_gradient, prepare_recurrence<GruBackward>, kDomain},
  };
}

}  // namespace onnx_train::cpu
