// GRU, its training form and its gradient (functions/recurrent.cc has the formulas). The three gates of a unit, z r h,
// are n elements apart; h is called g here. The product with R is two products: one for z and r, and one for g, which
// multiplies r h if the reset gate applies before the product, and h if it applies after it (linear_before_reset).
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/walk.h"

namespace onnx_train::cuda {
namespace {

// ---- Forward: inputs x w r b lens h0; outputs y y_h and, in training, gates and candidates

// Computes z and r, and r h as the operand of g's product.
template <typename T>
__global__ void gru_reset(CellStep s, GateActivation f, T* gates, const T* h, T* reset) {
  const CellElement at(s);
  if (!at.exists) return;
  T* const gate = gates + at.gate;
  const T r = activate(f, s.clip, gate[s.n()]);
  gate[0] = activate(f, s.clip, gate[0]);
  gate[s.n()] = r;
  reset[at.i] = rounded(s.rounds_operands, r * h[at.i]);
}

// Completes a step. With `linear`, z and r are still sums and `beside` holds h Rᵀ of g; otherwise it holds r h. b is
// the half of g's bias that belongs to R, or null.
template <typename T>
__global__ void gru_step(CellStep s, GateActivation f, GateActivation g_of, bool linear, bool keeps_gates, const T* b,
                         const T* beside, T* gates, T* h, T* y, T* candidates) {
  const CellElement at(s);
  if (!at.exists) return;
  const int64_t n = s.n(), j = at.i - s.hidden.quotient(at.i) * n;
  T* const gate = gates + at.gate;
  T z = 0, r = 0, g = 0, now = 0, candidate = 0;
  if (at.live) {
    z = linear ? activate(f, s.clip, gate[0]) : gate[0];
    r = linear ? activate(f, s.clip, gate[n]) : gate[n];
    candidate = beside[at.i];
    if (linear && b) candidate += b[j];
    g = activate(g_of, s.clip, linear ? gate[2 * n] + r * candidate : gate[2 * n]);
    now = rounded(s.rounds_operands, (T{1} - z) * g + z * h[at.i]);
    h[at.i] = now;
  }
  if (keeps_gates) {
    gate[0] = rounded(s.rounds_gates, z), gate[n] = rounded(s.rounds_gates, r),
    gate[2 * n] = rounded(s.rounds_gates, g);
  }
  if (y) y[at.i] = now;
  if (candidates) candidates[at.i] = rounded(s.rounds_gates, candidate);
}

template <typename T>
class GruForward {
 public:
  static constexpr int kStepGates = 2, kGates = 2;

  GruForward(const NodeSpec&, const Sequence& s, Workspace* workspace)
      : s_(s),
        linear_(s.recurrence.linear_before_reset),
        g_(s.with_transpose(s.e.hidden, linear_ ? s.e.hidden : s.e.gate_stride(), !linear_)),
        beside_(workspace->reserve(static_cast<size_t>(s.e.batch * s.e.hidden) * sizeof(T))) {}
  size_t workspace() const { return g_.workspace(); }
  void start(const Launch&) const {}
  void step(const Launch& launch, const CellStep& step, const ForwardRows<T>& now) const {
    const int64_t n = s_.e.hidden, d = now.d;
    T *const beside = static_cast<T*>(address(beside_, launch)), *const candidates = s_.out<T>(launch, 3);
    const T *b = s_.in<T>(launch, 3), *r_of_g = now.r + 2 * n * n;
    const GateActivation &f = s_.recurrence.activation(d, 0), &g = s_.recurrence.activation(d, 1);
    if (linear_) {
      g_.run(launch, now.h, r_of_g, beside, now.scratch);
    } else {
      enqueue(launch, "gru_reset", gru_reset<T>, s_.blocks(), kThreads, 0, step, f, now.gates, now.h, beside);
      g_.run(launch, beside, r_of_g, now.gates + 2 * n, now.scratch);
    }
    enqueue(launch, "gru_step", gru_step<T>, s_.blocks(), kThreads, 0, step, f, g, linear_, now.keeps_gates,
            b ? b + (6 * d + 5) * n : nullptr, beside, now.gates, now.h, now.y,
            candidates ? candidates + s_.e.value(now.t, d, 0) : nullptr);
  }

 private:
  const Sequence& s_;
  const bool linear_;
  const InnerProduct g_;
  const OperandPlace beside_;  // h Rᵀ of g, or r h: [B, H]
};

// ---- Backward: inputs r lens h0 y gates candidates dy dy_h; outputs dgates dr dh0 dn

// Computes dz and dg; with linear_before_reset (`candidates` is not null) also dr and dn = dg r. dh keeps the part of
// the gradient that bypasses the cell.
template <typename T>
__global__ void gru_gradient_step(CellStep s, GateActivation f, GateActivation g_of, const T* gates, const T* h_before,
                                  const T* candidates, const T* dy, T* dh, T* dgates, T* dn, int64_t dn_stride) {
  const CellElement at(s);
  if (!at.exists) return;
  const int64_t n = s.n(), sample = s.hidden.quotient(at.i);
  T dz = 0, dr = 0, dg = 0, dn_now = 0;
  if (at.live) {
    const T* const gate = gates + at.gate;
    const T z = gate[0], r = gate[n], g = gate[2 * n], total = dy ? dh[at.i] + dy[at.i] : dh[at.i];
    dg = differentiate(g_of, g, total * (T{1} - z));
    dz = differentiate(f, z, total * (h_before[at.i] - g));
    dh[at.i] = total * z;
    if (candidates) {
      dr = differentiate(f, r, dg * candidates[at.i]);
      dn_now = dg * r;
    }
  }
  T* const dgate = dgates + at.gate;
  const bool rounds = s.rounds_operands;
  dgate[0] = rounded(rounds, dz), dgate[n] = rounded(rounds, dr), dgate[2 * n] = rounded(rounds, dg);
  if (candidates) dn[sample * dn_stride + at.i - sample * n] = rounded(rounds, dn_now);
}

// Applies q = dg R if the reset gate precedes the product: dr = f' q h_before, dh += q r. `reset` becomes r h_before,
// the factor of dg in the gradient of R.
template <typename T>
__global__ void gru_undo_reset(CellStep s, GateActivation f, const T* gates, const T* h_before, const T* q, T* dh,
                               T* dgates, T* reset) {
  const CellElement at(s);
  if (!at.exists) return;
  T kept = 0;
  if (at.live) {
    const T r = gates[at.gate + s.n()], h = h_before[at.i];
    dgates[at.gate + s.n()] = rounded(s.rounds_operands, differentiate(f, r, q[at.i] * h));
    dh[at.i] += q[at.i] * r;
    kept = rounded(s.rounds_operands, r * h);
  }
  reset[at.i] = kept;
}

template <typename T>
class GruBackward {
 public:
  static constexpr int kStepGates = 2, kY = 3, kDy = 6;
  static constexpr bool kNeedsStates = true;

  GruBackward(const NodeSpec& spec, const Sequence& s, Workspace* workspace)
      : s_(s),
        linear_(s.recurrence.linear_before_reset),
        g_(s.with_rows(s.e.hidden, g_row(), linear_)),
        dr_(s.outer(s.e.hidden, g_row())) {
    const size_t all = static_cast<size_t>(s.e.steps * s.e.state_size()) * sizeof(T);
    if (linear_) {
      dn_ = output_or_scratch(spec, 3, all, workspace);
    } else {
      reset_ = workspace->reserve(all);
      q_ = workspace->reserve(static_cast<size_t>(s.e.batch * s.e.hidden) * sizeof(T));
    }
  }
  size_t workspace() const { return std::max(g_.workspace(), dr_.workspace()); }
  void start(const Launch&) const {}
  void step(const Launch& launch, const CellStep& step, const BackwardRows<T>& now) const {
    const Extents& e = s_.e;
    const int64_t t = now.t, d = now.d, n = e.hidden;
    const T *gates = launch.in<T>(4) + e.gate(t, d, 0), *r_of_g = now.r + 2 * n * n;
    const T* candidates = linear_ ? launch.in<T>(5) + e.value(t, d, 0) : nullptr;
    const GateActivation &f = s_.recurrence.activation(d, 0), &g = s_.recurrence.activation(d, 1);
    T* const dn = linear_ ? static_cast<T*>(address(dn_, launch)) + (t * e.batch * e.directions + d) * n : nullptr;
    enqueue(launch, "gru_gradient_step", gru_gradient_step<T>, s_.blocks(), kThreads, 0, step, f, g, gates, now.before,
            candidates, now.dy, now.dh, now.dgates, dn, e.directions * n);
    if (linear_) return g_.run(launch, dn, r_of_g, now.dh, now.scratch);
    T *const q = static_cast<T*>(address(q_, launch)), *const reset = static_cast<T*>(address(reset_, launch));
    g_.run(launch, now.dgates + 2 * n, r_of_g, q, now.scratch);
    enqueue(launch, "gru_undo_reset", gru_undo_reset<T>, s_.blocks(), kThreads, 0, step, f, gates, now.before, q,
            now.dh, now.dgates, reset + (d * e.steps + t) * e.batch * n);
  }
  void finish(const Launch& launch, const T* h_before, void* scratch) const {
    const Extents& e = s_.e;
    const int64_t n = e.hidden;
    T* const dr = s_.out<T>(launch, 1);
    for (int64_t d = 0; dr && d < e.directions; ++d) {
      const T* of_g =
          linear_ ? static_cast<T*>(address(dn_, launch)) + d * n : launch.out<T>(0) + d * e.gate_row() + 2 * n;
      const T* h = linear_ ? h_before : static_cast<T*>(address(reset_, launch));
      dr_.run(launch, of_g, h + d * e.samples() * n, dr + d * e.gate_row() * n + 2 * n * n, scratch);
    }
  }

 private:
  // Distance between samples of the tensor that g's rows of R are multiplied by: dn, or dg within the gates.
  int64_t g_row() const { return linear_ ? s_.e.directions * s_.e.hidden : s_.e.gate_stride(); }

  const Sequence& s_;
  const bool linear_;
  const InnerProduct g_, dr_;
  OperandPlace dn_, reset_, q_;
};

}  // namespace

std::vector<Kernel> gru_kernels() { return recurrence_rows<GruForward, GruBackward>("GRU", "GRUTrain", "GRUGrad"); }

}  // namespace onnx_train::cuda
