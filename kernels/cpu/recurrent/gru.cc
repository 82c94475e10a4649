// GRU, its training form and its gradient (functions/recurrent.cc has the formulas). The product with R is two
// products: one for the gates z and r, and one for g. The latter multiplies r h if the reset gate applies before the
// product, and h if it applies after it (linear_before_reset).
#include "kernels/cpu/recurrent/gates.h"
#include "kernels/cpu/recurrent/walk.h"

namespace onnx_train::cpu {
namespace {

// Inputs x w r b lens h0; outputs y y_h and, in training, gates and candidates.
template <typename Type, typename OperandType>
class GruForward {
 public:
  using T = Type;
  using Operand = OperandType;
  static constexpr int kStepGates = 2, kGates = 2;
  static constexpr bool kReadsState = true;

  GruForward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s),
        linear_(s.recurrence.linear_before_reset),
        g_(s.parts, product_with_transpose(s.e, s.e.hidden, linear_ ? s.e.hidden : s.e.gate_stride(), !linear_),
           s.e.directions, workspace),
        candidates_(spec, 3) {
    const auto states = static_cast<size_t>(s.e.state_size());
    beside_ = workspace->reserve(states * sizeof(T));
    reset_ = std::is_same_v<T, Operand> ? beside_ : workspace->reserve(states * sizeof(Operand));
  }
  void begin(const Launch& launch) {
    const int64_t n = s_.e.hidden;
    g_.pack(launch, launch.in<Operand>(2) + 2 * n * n, s_.e.gate_row() * n);
  }
  void start(const Step&) {}

  // Computes z and r, and completes the sum of g.
  void finish_sums(const Step& step, const Operand* h, T* sums) {
    const Extents& e = s_.e;
    const BatchPart& part = step.part;
    const int64_t t = step.t, d = step.d(), n = e.hidden, start = e.state(d, part.first);
    T* beside = static_cast<T*>(address(beside_, step.launch));
    Operand* reset = static_cast<Operand*>(address(reset_, step.launch));
    const T* biases = s_.inputs.template get<T>(step.launch, 3);
    const T* b_of_g = biases ? biases + (6 * d + 5) * n : nullptr;
    if (linear_) g_.run(step.launch, part, h + start, beside + start);
    for (int64_t b = part.first; b < part.first + part.rows; ++b) {
      const int64_t at = e.state(d, b);
      open_gates(d, sums + e.gate(t, d, b), h + at, b_of_g, beside + at);
      if (!linear_) to_operand(s_.recurrence.round_operands, n, beside + at, reset + at);
    }
    if (!linear_) g_.run(step.launch, part, reset + start, sums + e.gate(t, d, part.first) + 2 * n);
  }

  void forward(const Step& step, T* gate, T* h) {
    const int64_t n = s_.e.hidden;
    const T* z = gate;
    T* g = gate + 2 * n;
    activate(s_.recurrence.activation(step.d(), 1), s_.recurrence.clip, n, g, g);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) h[j] = (T{1} - z[j]) * g[j] + z[j] * h[j];
    });
  }

  void store(const Step& step, bool live) {
    const int64_t n = s_.e.hidden;
    T* beside = static_cast<T*>(address(beside_, step.launch)) + s_.e.state(step.d(), step.b);
    if (s_.recurrence.round_gates && !candidates_.is_narrow()) to_operand(true, n, beside, beside);
    const Stored<T> candidates = candidates_.get(step.launch);
    if (candidates) candidates.write(live, s_.e.value(step.t, step.d(), step.b), n, beside);
  }

 private:
  // Computes z and r, then the sum of g or the operand of its product with R.
  void open_gates(int64_t d, T* gate, const Operand* h, const T* b_of_g, T* beside) const {
    const int64_t n = s_.e.hidden;
    activate(s_.recurrence.activation(d, 0), s_.recurrence.clip, 2 * n, gate, gate);
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

  const Sequence& s_;
  bool linear_;
  StepProduct<Operand> g_;
  StoredOutput<T> candidates_;
  OperandPlace beside_, reset_;  // beside: h Rᵀ + b of g, or r h; reset: r h as an operand
};

// Inputs r lens h0 y gates candidates dy dy_h; outputs dgates dr dh0 dn.
template <typename Type, typename OperandType>
class GruBackward {
 public:
  using T = Type;
  using Operand = OperandType;
  static constexpr int kStepGates = 2, kY = 3, kDy = 6;
  static constexpr bool kNeedsStates = true;

  GruBackward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s),
        linear_(s.recurrence.linear_before_reset),
        g_(s.parts, product_with_rows(s.e, s.e.hidden, g_stride(), linear_), s.e.directions, workspace),
        dr_(s.e, s.e.hidden, g_stride(), workspace) {
    const size_t all = static_cast<size_t>(s.e.steps * s.e.state_size()) * sizeof(Operand);
    if (linear_) {
      dn_ = output_or_scratch(spec, 3, all, workspace);
    } else {
      reset_ = workspace->reserve(all);
      to_reset_ = workspace->reserve(static_cast<size_t>(s.e.state_size()) * sizeof(T));
    }
  }
  void begin(const Launch& launch) {
    const int64_t n = s_.e.hidden;
    g_.pack(launch, launch.in<Operand>(0) + 2 * n * n, s_.e.gate_row() * n);
  }
  void end(const Launch&) {}
  void start(const Step&) {}

  // Computes dz, dg and, with linear_before_reset, dr and dn; dh keeps the part of the gradient that bypasses the cell.
  void backward(const Step& step, const Operand* before, T* dh, Operand* dgate, T* rows) {
    const int64_t d = step.d(), n = s_.e.hidden;
    T *dz = rows + 3 * n, *dr = dz + n, *dg = dr + n;
    const T* z = gates(step, 0, 3, rows);
    const T *r = z + n, *g = r + n;
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        dg[j] = dh[j] * (T{1} - z[j]);
        dz[j] = dh[j] * (math::convert<T>(before[j]) - g[j]);
        dh[j] *= z[j];
      }
    });
    differentiate(s_.recurrence.activation(d, 1), n, g, dg);
    differentiate(s_.recurrence.activation(d, 0), n, z, dz);
    keep(n, dz, dgate), keep(n, dg, dgate + 2 * n);
    if (!linear_) return;
    T* beside = dz;  // dz is stored
    const T* candidate = s_.inputs.template stored<T>(step.launch, 5).read(s_.e.value(step.t, d, step.b), n, beside);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        dr[j] = dg[j] * candidate[j];
        beside[j] = dg[j] * r[j];
      }
    });
    differentiate(s_.recurrence.activation(d, 0), n, r, dr);
    keep(n, dr, dgate + n), keep(n, beside, dn(step));
  }
  void skip(const Step& step) {
    if (linear_) std::fill_n(dn(step), s_.e.hidden, Operand{});
  }

  // dh += dn R; or with q = dg R: dr = f' q h_before, dh += q r, and r h_before is stored for the gradient of R.
  void finish_gradients(const Step& step, const Operand* before, T* dh, T* rows) {
    const Extents& e = s_.e;
    const BatchPart& part = step.part;
    const int64_t t = step.t, d = step.d(), n = e.hidden, start = e.state(d, part.first);
    if (linear_) return g_.run(step.launch, part, dn(step), dh + start);
    const int32_t* lengths = s_.inputs.template get<int32_t>(step.launch, 1);
    T* to_reset = static_cast<T*>(address(to_reset_, step.launch));
    Operand* reset = static_cast<Operand*>(address(reset_, step.launch)) + (d * e.steps + t) * e.batch * n;
    g_.run(step.launch, part, step.launch.template out<Operand>(0) + e.gate(t, d, part.first) + 2 * n,
           to_reset + start);
    for (int64_t b = part.first; b < part.first + part.rows; ++b) {
      if (is_live(lengths, t, b)) {
        undo_reset({step.launch, part, t, b}, to_reset + e.state(d, b), before + b * n, dh + e.state(d, b),
                   reset + b * n, rows);
      } else {
        std::fill_n(reset + b * n, n, Operand{});
      }
    }
  }

  void add_to_dr(const Launch& launch, int64_t d, const Operand* before) {
    const int64_t n = s_.e.hidden;
    const Operand* dgates = linear_ ? static_cast<Operand*>(address(dn_, launch)) + d * n
                                    : launch.out<Operand>(0) + d * s_.e.gate_row() + 2 * n;
    const Operand* h = linear_ ? before : static_cast<Operand*>(address(reset_, launch)) + d * s_.e.samples() * n;
    dr_.run(launch, dgates, h, launch.out<T>(1) + d * s_.e.gate_row() * n + 2 * n * n);
  }

 private:
  void undo_reset(const Step& step, const T* q, const Operand* h, T* dh, Operand* reset, T* rows) {
    const int64_t n = s_.e.hidden;
    T *dr = rows + n, *kept = dr + n;
    const T* r = gates(step, 1, 1, rows);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        dr[j] = q[j] * math::convert<T>(h[j]);
        dh[j] += q[j] * r[j];
        kept[j] = r[j] * math::convert<T>(h[j]);
      }
    });
    differentiate(s_.recurrence.activation(step.d(), 0), n, r, dr);
    keep(n, dr, step.launch.template out<Operand>(0) + s_.e.gate(step.t, step.d(), step.b) + n);
    keep(n, kept, reset);
  }

  // Returns the values of `count` gates of the sample from `first` on, converted into `rows` if necessary.
  const T* gates(const Step& step, int64_t first, int64_t count, T* rows) const {
    const int64_t n = s_.e.hidden, at = s_.e.gate(step.t, step.d(), step.b) + first * n;
    return s_.inputs.template stored<T>(step.launch, 4).read(at, count * n, rows);
  }
  Operand* dn(const Step& step) const {
    const int64_t row = (step.t * s_.e.batch + step.b) * s_.e.directions + step.d();
    return static_cast<Operand*>(address(dn_, step.launch)) + row * s_.e.hidden;
  }
  void keep(int64_t n, const T* from, Operand* to) const { to_operand(s_.recurrence.round_operands, n, from, to); }
  // Distance between samples of the tensor that g's rows of R are multiplied by: dn, or dg within the gates.
  int64_t g_stride() const { return linear_ ? s_.e.directions * s_.e.hidden : s_.e.gate_stride(); }

  const Sequence& s_;
  bool linear_;
  StepProduct<Operand> g_;
  OuterProduct<Operand> dr_;
  OperandPlace dn_, reset_, to_reset_;
};

}  // namespace

std::vector<Kernel> gru_kernels() {
  return recurrence_rows<GruForward, GruBackward>("GRU", "GRUTrain", "GRUGrad", [](const NodeSpec& spec) {
    const bool takes_dn = spec.num_outputs() < 4 || !spec.has_output(3) || spec.out_type(3) == DType::kBFloat16;
    return takes_bfloat16_backward(spec, 3, {0, 2, 3, 4, 5, 6}) && takes_dn;
  });
}

}  // namespace onnx_train::cpu
