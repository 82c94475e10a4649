// GRU, its training form and its gradient (functions/recurrent.cc has the formulas). The product with R is two: that of
// the gates z and r, and that of g, which meets r h where the reset gate applies before it, and h where behind.
#include "kernels/cpu/gates.h"
#include "kernels/cpu/recurrent.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Inputs x w r b lens h0; outputs y y_h and, in training, gates and candidates.
template <typename T>
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
        keeps_y_(spec.has_output(0)),
        keeps_candidates_(spec.num_outputs() > 3 && spec.has_output(3)) {
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
    h_ = output_or_scratch(spec, 1, bytes(e_.state_size()), &workspace_);
    gates_ = output_or_scratch(spec, 2, bytes(e_.samples() * e_.gate_stride()), &workspace_);
    beside_ = workspace_.reserve(bytes(e_.state_size()));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Args& args) {
    T* gates = static_cast<T*>(address(gates_, args));
    const int64_t matrix = e_.gate_row() * e_.hidden;
    input_product_.run(args, args.in<T>(0), args.in<T>(1), inputs_.get<T>(args, 3), gates);
    zr_.pack(args, args.in<T>(2), matrix);
    g_.pack(args, args.in<T>(2) + 2 * e_.hidden * e_.hidden, matrix);
    for_each_part<T>(parts_, [&](const Part& part) { run_part(args, part, gates); });
  }

 private:
  void run_part(const Args& args, const Part& part, T* gates) {
    const int64_t d = part.direction, n = e_.hidden, first = part.first;
    const int32_t* lengths = inputs_.get<int32_t>(args, 4);
    const T* b_of_g = inputs_.has(3) ? inputs_.get<T>(args, 3) + d * 6 * n + 5 * n : nullptr;
    T *h = static_cast<T*>(address(h_, args)), *beside = static_cast<T*>(address(beside_, args));
    start_state(e_, part, inputs_.get<T>(args, 5), h);
    for (int64_t i = 0; i < e_.steps; ++i) {
      const int64_t t = order_.step(d, i);
      zr_.run(args, part, h + e_.state(d, first), gates + e_.gate(t, d, first));
      if (linear_) g_.run(args, part, h + e_.state(d, first), beside + e_.state(d, first));
      for (int64_t b = first; b < first + part.rows; ++b) {
        T* gate = gates + e_.gate(t, d, b);
        open_gates(d, gate, h + e_.state(d, b), b_of_g, beside + e_.state(d, b));
      }
      if (!linear_) g_.run(args, part, beside + e_.state(d, first), gates + e_.gate(t, d, first) + 2 * n);
      for (int64_t b = first; b < first + part.rows; ++b) {
        const bool live = is_live(lengths, t, b);
        if (live) renew(d, gates + e_.gate(t, d, b), h + e_.state(d, b));
        store(args, live, t, d, b, h + e_.state(d, b), gates + e_.gate(t, d, b), beside + e_.state(d, b));
      }
    }
  }

  // z and r; then g's sum, or what its product with R takes.
  void open_gates(int64_t d, T* gate, const T* h, const T* b_of_g, T* beside) const {
    const int64_t n = e_.hidden;
    activate(recurrence_.activation(d, 0), recurrence_.clip, 2 * n, gate, gate);
    const T* r = gate + n;
    T* g = gate + 2 * n;
    if (!linear_) {
      map(n, r, true, h, true, beside, [](T x, T y) { return x * y; });
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

  void store(const Args& args, bool live, int64_t t, int64_t d, int64_t b, const T* h, T* gate, const T* beside) const {
    const int64_t n = e_.hidden;
    if (!live) std::fill(gate, gate + e_.gate_row(), T{0});
    if (keeps_y_) store_row(live, n, h, args.out<T>(0) + e_.value(t, d, b));
    if (keeps_candidates_) store_row(live, n, beside, args.out<T>(3) + e_.value(t, d, b));
  }

  Extents e_;
  Recurrence recurrence_;
  bool linear_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  InputProduct<T> input_product_;
  StepProduct<T> zr_, g_;
  bool keeps_y_, keeps_candidates_;
  Place h_, gates_, beside_;  // beside: h Rᵀ + b of g, or r h
};

// Inputs r lens h0 y gates candidates dy dy_h; outputs dgates dr dh0 dn.
template <typename T>
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
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
    dh_ = output_or_scratch(spec, 2, bytes(e_.state_size()), &workspace_);
    h_before_ = workspace_.reserve(bytes(e_.steps * e_.state_size()));
    if (linear_) {
      dn_ = output_or_scratch(spec, 3, bytes(e_.steps * e_.state_size()), &workspace_);
    } else {
      reset_ = workspace_.reserve(bytes(e_.steps * e_.state_size()));
      to_reset_ = workspace_.reserve(bytes(e_.state_size()));
    }
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Args& args) {
    const T *r = args.in<T>(0), *h0 = h0_.get(args);
    const int64_t n = e_.hidden, matrix = e_.gate_row() * n;
    T* h_before = static_cast<T*>(address(h_before_, args));
    zr_.pack(args, r, matrix);
    g_.pack(args, r + 2 * n * n, matrix);
    for_each_part<T>(parts_, [&](const Part& part) {
      copy_h_before(e_, order_, part, inputs_.get<int32_t>(args, 1), args.in<T>(3), h0, h_before);
      run_part(args, part, h_before);
    });
    if (!args.out<T>(1)) return;
    for (int64_t d = 0; d < e_.directions; ++d) {
      const int64_t sequence = d * e_.samples() * n;
      T* dr = args.out<T>(1) + d * matrix;
      const T* dgates = args.out<T>(0) + d * e_.gate_row();
      dr_zr_.run(args, dgates, h_before + sequence, dr);
      if (linear_) {
        dr_g_.run(args, static_cast<const T*>(address(dn_, args)) + d * n, h_before + sequence, dr + 2 * n * n);
      } else {
        dr_g_.run(args, dgates + 2 * n, static_cast<const T*>(address(reset_, args)) + sequence, dr + 2 * n * n);
      }
    }
  }

 private:
  // From sample to sample of what g's part of R meets: dn, or dg among the gates.
  int64_t g_stride() const { return linear_ ? e_.directions * e_.hidden : e_.gate_stride(); }
  int64_t dn_at(int64_t t, int64_t d, int64_t b) const { return ((t * e_.batch + b) * e_.directions + d) * e_.hidden; }

  void run_part(const Args& args, const Part& part, const T* h_before) {
    const int64_t d = part.direction, n = e_.hidden, first = part.first;
    const int32_t* lengths = inputs_.get<int32_t>(args, 1);
    const T* dy = inputs_.get<T>(args, 6);
    T *dgates = args.out<T>(0), *dh = static_cast<T*>(address(dh_, args));
    start_state(e_, part, inputs_.get<T>(args, 7), dh);
    for (int64_t i = e_.steps; i-- > 0;) {
      const int64_t t = order_.step(d, i);
      const T* before = h_before + (d * e_.steps + t) * e_.batch * n;
      for (int64_t b = first; b < first + part.rows; ++b) {
        const bool live = is_live(lengths, t, b);
        if (live && dy) add(n, dy + e_.value(t, d, b), dh + e_.state(d, b));
        if (live) undo_cell(args, t, d, b, before + b * n, dh + e_.state(d, b));
        if (live) continue;
        std::fill_n(dgates + e_.gate(t, d, b), e_.gate_row(), T{0});
        if (linear_) std::fill_n(static_cast<T*>(address(dn_, args)) + dn_at(t, d, b), n, T{0});
      }
      undo_product_of_g(args, part, t, before, lengths, dh);
      // Adds nothing for samples without this step: their dgates are zero.
      zr_.run(args, part, dgates + e_.gate(t, d, first), dh + e_.state(d, first));
    }
  }

  // dz, dg and, with linear_before_reset, dr and dn; dh keeps what goes past the cell.
  void undo_cell(const Args& args, int64_t t, int64_t d, int64_t b, const T* before, T* dh) const {
    const int64_t n = e_.hidden;
    const T *z = args.in<T>(4) + e_.gate(t, d, b), *r = z + n, *g = r + n;
    T *dz = args.out<T>(0) + e_.gate(t, d, b), *dr = dz + n, *dg = dr + n;
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        dg[j] = dh[j] * (T{1} - z[j]);
        dz[j] = dh[j] * (before[j] - g[j]);
        dh[j] *= z[j];
      }
    });
    differentiate(recurrence_.activation(d, 1), n, g, dg);
    differentiate(recurrence_.activation(d, 0), n, z, dz);
    if (!linear_) return;
    const T* candidate = args.in<T>(5) + e_.value(t, d, b);
    T* dn = static_cast<T*>(address(dn_, args)) + dn_at(t, d, b);
    vectorized([=] {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        dr[j] = dg[j] * candidate[j];
        dn[j] = dg[j] * r[j];
      }
    });
    differentiate(recurrence_.activation(d, 0), n, r, dr);
  }

  // dh += dn R; or with q = dg R: dr = f' q h_before, dh += q r, and r h_before is kept for R's gradient.
  void undo_product_of_g(const Args& args, const Part& part, int64_t t, const T* before, const int32_t* lengths,
                         T* dh) {
    const int64_t d = part.direction, n = e_.hidden, first = part.first;
    if (linear_) {
      return g_.run(args, part, static_cast<const T*>(address(dn_, args)) + dn_at(t, d, first),
                    dh + e_.state(d, first));
    }
    T *dgates = args.out<T>(0), *to_reset = static_cast<T*>(address(to_reset_, args));
    g_.run(args, part, dgates + e_.gate(t, d, first) + 2 * n, to_reset + e_.state(d, first));
    for (int64_t b = first; b < first + part.rows; ++b) {
      T* reset = static_cast<T*>(address(reset_, args)) + ((d * e_.steps + t) * e_.batch + b) * n;
      const T *r = args.in<T>(4) + e_.gate(t, d, b) + n, *q = to_reset + e_.state(d, b), *h = before + b * n;
      T *dr = dgates + e_.gate(t, d, b) + n, *dh_row = dh + e_.state(d, b);
      if (!is_live(lengths, t, b)) {
        std::fill_n(reset, n, T{0});
        continue;
      }
      vectorized([=] {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
          dr[j] = q[j] * h[j];
          dh_row[j] += q[j] * r[j];
          reset[j] = r[j] * h[j];
        }
      });
      differentiate(recurrence_.activation(d, 0), n, r, dr);
    }
  }

  Extents e_;
  Recurrence recurrence_;
  bool linear_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  StepProduct<T> zr_, g_;
  OuterProduct<T> dr_zr_, dr_g_;
  FirstState<T> h0_;
  Place dh_, h_before_, dn_, reset_, to_reset_;
};

}  // namespace

std::vector<Kernel> gru_kernels() {
  return {
      {"GRU", takes_recurrence, prepare_recurrence<GruForward>},
      {"GRUTrain", takes_recurrence, prepare_recurrence<GruForward>, kDomain},
      {"GRUGrad", takes_recurrence, prepare_recurrence<GruBackward>, kDomain},
  };
}

}  // namespace onnx_train::cpu
