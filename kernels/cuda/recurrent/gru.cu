// GRU, its training form and its gradient (functions/recurrent.cc has the formulas). The three gates of a unit, z r h,
// are n elements apart; h is called g here. If the reset gate applies before the product (kLinear is false), a step has
// two products, one for z and r, and one for g, which multiplies r h. If it applies after it (linear_before_reset),
// both multiply h.
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/walk.h"

namespace onnx_train::cuda {
namespace {

template <bool kIsForward, bool kLinear>
using GruPhases =
    std::conditional_t<kLinear, Phases<kIsForward, GateRows{0, 3}>, Phases<kIsForward, GateRows{0, 2}, GateRows{2, 1}>>;

// ---- Forward: inputs x w r b lens h0; outputs y y_h and, in training, gates and candidates

template <typename T, bool kLinear>
struct GruCell : CellNode, GruPhases<true, kLinear> {
  struct Loaded {
    T sums[kLinear ? 3 : 2];  // z r, with kLinear also R's part of g; in phase 1 g, and r itself
    T h;
    T kept;  // with kLinear W's part of g; in phase 1 z itself
  };

  template <int kPhase>
  __device__ Loaded load(const CellElement& at) const {
    const int64_t n = e.hidden;
    const T *const gate = gates + at.gate, h_now = h[at.state];
    if constexpr (kLinear) {
      return {{gate[0], gate[n], beside ? beside[at.state] : T{0}}, h_now, gate[2 * n]};
    } else if constexpr (kPhase == 0) {
      return {{gate[0], gate[n]}, h_now, T{0}};
    } else {
      return {{gate[2 * n], gate[n]}, h_now, gate[0]};
    }
  }
  template <int kPhase>
  __device__ OperandPart<T, 1> step(const CellElement& at, const Loaded& x) const {
    const int64_t n = e.hidden;
    const GateActivation &f = activations[at.d][0], &g_of = activations[at.d][1];
    T* const gate = gates + at.gate;
    T z = x.kept, r = x.sums[1], g = 0, now = x.h, candidate = 0;
    if constexpr (kLinear || kPhase == 0) {
      z = activate(f, clip, x.sums[0]);
      r = activate(f, clip, x.sums[1]);
    }
    if constexpr (!kLinear && kPhase == 0) {
      gate[0] = z, gate[n] = r;
      const T kept = rounded(rounds_operands, r * x.h);
      if (beside) beside[at.state] = kept;
      return {{kept}};
    }
    if (at.live) {
      if constexpr (kLinear) {
        candidate = x.sums[2];
        if (b) candidate += b[(6 * at.d + 5) * n + at.j];
        g = activate(g_of, clip, x.kept + r * candidate);
      } else {
        g = activate(g_of, clip, x.sums[0]);
      }
      h[at.state] = now = rounded(rounds_operands, (T{1} - z) * g + z * x.h);
    } else {
      z = r = 0;
    }
    if (keeps_gates) {
      gate[0] = rounded(rounds_gates, z), gate[n] = rounded(rounds_gates, r);
      gate[2 * n] = rounded(rounds_gates, g);
    }
    if (y) y[at.value] = at.live ? now : T{0};
    if (candidates) candidates[at.value] = rounded(rounds_gates, candidate);
    return {{now}};
  }
  __device__ OperandPart<T, 1> first_operand(const CellElement& at) const { return {{h[at.state]}}; }

  const T* b;  // bias, whose part for g of R linear_before_reset adds to the product; or null
  bool keeps_gates;
  T *gates, *h, *y, *candidates;  // y and candidates may be null
  T* beside;                      // [D, B, H], null in a persistent kernel: h Rᵀ of g, which is read; or r h
};

template <typename T>
class GruForward {
 public:
  static constexpr int kStepGates = 2, kGates = 2;

  GruForward(const NodeSpec&, const Sequence& s, Workspace* workspace)
      : s_(s),
        linear_(s.recurrence.linear_before_reset),
        g_(s.with_transpose(s.e.hidden, linear_ ? s.e.hidden : s.e.gate_stride(), !linear_)),
        beside_(workspace->reserve(static_cast<size_t>(s.e.state_size()) * sizeof(T))) {}
  size_t workspace() const { return g_.workspace(); }
  void start(const Launch&) const {}
  // Calls f(identity of the cell), and returns what it returns.
  template <typename F>
  static auto with_type(const Recurrence& recurrence, const F& f) {
    return recurrence.linear_before_reset ? f(std::type_identity<GruCell<T, true>>())
                                          : f(std::type_identity<GruCell<T, false>>());
  }
  template <typename F>
  void with_cell(const Launch& launch, const ForwardValues<T>& at, const F& f) const {
    with_cell(launch, at, nullptr, f);
  }
  void step(const Launch& launch, int64_t t, int64_t d, const ForwardValues<T>& at) const {
    const int64_t n = s_.e.hidden;
    T* const all = static_cast<T*>(address(beside_, launch));
    T *const beside = all + s_.e.state(d, 0), *const gates = at.gates + s_.e.gate(t, d, 0);
    const T* const r_of_g = s_.rows_of<T>(launch.inputs[2], d, 2);
    with_cell(launch, at, all, [&]<bool kLinear>(const GruCell<T, kLinear>& cell) {
      if constexpr (kLinear) {
        g_.run(launch, at.h + s_.e.state(d, 0), r_of_g, beside, at.scratch);
        s_.enqueue_cell<0>(launch, "gru_step", cell, t, d);
      } else {
        s_.enqueue_cell<0>(launch, "gru_reset", cell, t, d);
        g_.run(launch, beside, r_of_g, gates + 2 * n, at.scratch);
        s_.enqueue_cell<1>(launch, "gru_step", cell, t, d);
      }
    });
  }

 private:
  template <typename F>
  void with_cell(const Launch& launch, const ForwardValues<T>& at, T* beside, const F& f) const {
    const auto make = [&]<bool kLinear>(std::bool_constant<kLinear>) {
      f(GruCell<T, kLinear>{s_.cell_node(launch, 4),
                            {},
                            s_.in<T>(launch, 3),
                            at.keeps_gates,
                            at.gates,
                            at.h,
                            at.y,
                            s_.out<T>(launch, 3),
                            beside});
    };
    linear_ ? make(std::true_type()) : make(std::false_type());
  }

  const Sequence& s_;
  const bool linear_;
  const InnerProduct g_;
  const OperandPlace beside_;
};

// ---- Backward: inputs r lens h0 y gates candidates dy dy_h; outputs dgates dr dh0 dn

// With kLinear the only phase computes dz, dg, dr and dn = dg r. Otherwise phase 0 computes dz and dg; q = dg R is the
// product that phase 1 reads: dr = f' q h_before, dh += q r, and r h_before, the factor of dg in the gradient of R.
// dh keeps the part of the gradient that bypasses the cell.
template <typename T, bool kLinear>
struct GruGradientCell : CellNode, GruPhases<false, kLinear> {
  struct Loaded {
    T sums[1];  // dh, or q in phase 1
    T dy, z, r, g, candidate, h_before;
  };

  template <int kPhase>
  __device__ Loaded load(const CellElement& at) const {
    const int64_t n = e.hidden;
    const T* const gate = gates + at.gate;
    const T h = states[in_states(at)];
    if constexpr (kPhase == 1) return {{q ? q[at.state] : T{0}}, T{0}, T{0}, gate[n], T{0}, T{0}, h};
    return {{dh[at.state]},
            dy ? dy[at.value] : T{0},
            gate[0],
            gate[n],
            gate[2 * n],
            kLinear ? candidates[at.value] : T{0},
            h};
  }
  template <int kPhase>
  __device__ auto step(const CellElement& at, const Loaded& x) const {
    const int64_t n = e.hidden;
    const GateActivation &f = activations[at.d][0], &g_of = activations[at.d][1];
    T* const dgate = dgates + at.gate;
    const bool rounds = rounds_operands;
    if constexpr (kPhase == 1) {
      const T product = x.sums[0];
      const T dr = at.live ? rounded(rounds, differentiate(f, x.r, product * x.h_before)) : T{0};
      if (at.live) dh[at.state] += product * x.r;
      dgate[n] = dr;
      reset[in_states(at)] = at.live ? rounded(rounds, x.r * x.h_before) : T{0};
      return OperandPart<T, 2>{{dgate[0], dr}};
    } else {
      T dz = 0, dr = 0, dg = 0, dn_now = 0, kept = x.sums[0];
      if (at.live) {
        const T total = x.sums[0] + x.dy;
        dg = differentiate(g_of, x.g, total * (T{1} - x.z));
        dz = differentiate(f, x.z, total * (x.h_before - x.g));
        kept = total * x.z;
        if constexpr (kLinear) {
          dr = differentiate(f, x.r, dg * x.candidate);
          dn_now = rounded(rounds, dg * x.r);
        }
      }
      dh[at.state] = kept;
      dz = rounded(rounds, dz), dr = rounded(rounds, dr), dg = rounded(rounds, dg);
      dgate[0] = dz, dgate[n] = dr, dgate[2 * n] = dg;
      if constexpr (kLinear) {
        dn[(at.gate - at.j) / 3 + at.j] = dn_now;
        return OperandPart<T, 3>{{dz, dr, dn_now}};
      } else {
        return OperandPart<T, 1>{{dg}};
      }
    }
  }
  __device__ void finish(const CellElement& at, const Loaded& x) const { dh[at.state] = x.sums[0]; }

  // The element's offset in [D, T, B, H].
  __device__ int64_t in_states(const CellElement& at) const {
    return at.state + (at.d * (e.steps - 1) + at.t) * e.batch * e.hidden;
  }

  const T *states, *gates, *candidates, *dy;  // states: h before each step, [D, T, B, H]
  T *dh, *dgates;
  T* dn;       // with kLinear: [T, B, D, H]
  const T* q;  // [D, B, H], null in a persistent kernel: dg R
  T* reset;    // r h_before, [D, T, B, H]
};

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
      q_ = workspace->reserve(static_cast<size_t>(s.e.state_size()) * sizeof(T));
    }
  }
  size_t workspace() const { return std::max(g_.workspace(), dr_.workspace()); }
  void start(const Launch&) const {}
  // Calls f(identity of the cell), and returns what it returns.
  template <typename F>
  static auto with_type(const Recurrence& recurrence, const F& f) {
    return recurrence.linear_before_reset ? f(std::type_identity<GruGradientCell<T, true>>())
                                          : f(std::type_identity<GruGradientCell<T, false>>());
  }
  template <typename F>
  void with_cell(const Launch& launch, const BackwardValues<T>& at, const F& f) const {
    with_cell(launch, at, nullptr, f);
  }
  void step(const Launch& launch, int64_t t, int64_t d, const BackwardValues<T>& at) const {
    const Extents& e = s_.e;
    const int64_t n = e.hidden;
    const T* const r_of_g = s_.rows_of<T>(launch.inputs[0], d, 2);
    T* const all = linear_ ? nullptr : static_cast<T*>(address(q_, launch));
    with_cell(launch, at, all, [&]<bool kLinear>(const GruGradientCell<T, kLinear>& cell) {
      s_.enqueue_cell<0>(launch, "gru_gradient_step", cell, t, d);
      if constexpr (kLinear) {
        g_.run(launch, cell.dn + e.gate(t, d, 0) / 3, r_of_g, at.dh + e.state(d, 0), at.scratch);
      } else {
        g_.run(launch, at.dgates + e.gate(t, d, 0) + 2 * n, r_of_g, all + e.state(d, 0), at.scratch);
        s_.enqueue_cell<1>(launch, "gru_undo_reset", cell, t, d);
      }
    });
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

  template <typename F>
  void with_cell(const Launch& launch, const BackwardValues<T>& at, const T* q, const F& f) const {
    const auto make = [&]<bool kLinear>(std::bool_constant<kLinear>) {
      f(GruGradientCell<T, kLinear>{s_.cell_node(launch, 1),
                                    {},
                                    at.h_before,
                                    launch.in<T>(4),
                                    kLinear ? launch.in<T>(5) : nullptr,
                                    at.dy,
                                    at.dh,
                                    at.dgates,
                                    kLinear ? static_cast<T*>(address(dn_, launch)) : nullptr,
                                    q,
                                    kLinear ? nullptr : static_cast<T*>(address(reset_, launch))});
    };
    linear_ ? make(std::true_type()) : make(std::false_type());
  }

  const Sequence& s_;
  const bool linear_;
  const InnerProduct g_, dr_;
  OperandPlace dn_, reset_, q_;
};

}  // namespace

std::vector<Kernel> gru_kernels() { return recurrence_rows<GruForward, GruBackward>("GRU", "GRUTrain", "GRUGrad"); }

}  // namespace onnx_train::cuda
