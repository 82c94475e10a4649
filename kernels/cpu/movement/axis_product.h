// Multiplies one axis of a tensor by a sparse matrix. Resize and its gradient apply it axis by axis (resampling.cc).
//
// The constructor builds tables. The terms of an element are added in the order of the matrix columns, however an axis
// is divided. For integer tensors the matrix has one weight of 1 per row, so elements are only copied. An AxisProduct
// is immutable; any number of threads may run it, within `vectorized` (simd.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/geometry/resampling.h"

namespace onnx_train::cpu {

// y = Σ_t w[t] x[t], where x[t] are vectors of n elements.
template <typename T>
[[gnu::always_inline]] inline void sum_of_products(const T* const* x, const T* w, int64_t terms, int64_t n,
                                                   T* __restrict y) {
  if (terms == 1 && w[0] == 1) {
    std::memcpy(y, x[0], static_cast<size_t>(n) * sizeof(T));
    return;
  }
  if constexpr (std::is_floating_point_v<T>) {
    const T *a = x[0], *b = x[1], *c = x[2], *d = x[3];
    const T u = w[0], v = terms > 1 ? w[1] : 0, p = terms > 2 ? w[2] : 0, q = terms > 3 ? w[3] : 0;
    switch (terms) {
      case 0: std::fill_n(y, n, T{0}); return;
      case 1:
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = u * a[i];
        return;
      case 2:
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = u * a[i] + v * b[i];
        return;
      case 3:
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = u * a[i] + v * b[i] + p * c[i];
        return;
      default:
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = u * a[i] + v * b[i] + p * c[i] + q * d[i];
    }
  } else {
    std::fill_n(y, n, T{0});  // an integer row is a copy or empty
  }
}

template <typename T>
class AxisProduct {
 public:
  // Multiplies tensors [rows, matrix.columns, inner] into [rows, matrix.rows(), inner].
  AxisProduct(const SparseMatrix& matrix, int64_t inner)
      : in_(matrix.columns), out_(matrix.rows()), inner_(inner), is_flat_(inner < kVector) {
    const int64_t width = is_flat_ ? inner : 1;  // a short inner axis is merged with this one
    begin_.push_back(0);
    for (int64_t i = 0; i < out_; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        for (int64_t e = matrix.begin[static_cast<size_t>(i)]; e < matrix.begin[static_cast<size_t>(i) + 1]; ++e) {
          const auto& entry = matrix.entries[static_cast<size_t>(e)];
          columns_.push_back(entry.column * width + c);
          weights_.push_back(static_cast<T>(entry.weight));
        }
        begin_.push_back(static_cast<int64_t>(columns_.size()));
      }
    }
    if (is_flat_ && !find_phases<2, 1>(&doubling_) && !find_phases<1, 2>(&halving_)) make_columns_of_terms();
  }

  // Whether the inner axis is so short that the axis is processed as a whole.
  bool is_flat() const { return is_flat_; }

  [[gnu::always_inline]] void run(const T* x, int64_t rows, T* y) const {
    for (int64_t row = 0; row < rows; ++row, x += in_ * inner_, y += out_ * inner_) {
      if (is_flat_) {
        run_flat(x, y);
      } else {
        run_part(x, 0, 0, out_, y);
      }
    }
  }

  // Computes elements [begin, end) of one row of y; x starts at its element `first`. Not for a flat axis.
  [[gnu::always_inline]] void run_part(const T* x, int64_t first, int64_t begin, int64_t end, T* y) const {
    for (int64_t i = begin; i < end; ++i, y += inner_) {
      const int64_t entry = begin_[static_cast<size_t>(i)], terms = begin_[static_cast<size_t>(i) + 1] - entry;
      const T* w = weights_.data() + entry;
      const int64_t* columns = columns_.data() + entry;
      sum_rows(terms, w, y, inner_, [&](int64_t t) { return x + (columns[t] - first) * inner_; });
    }
  }

 private:
  static constexpr int64_t kVector = 8;   // a shorter inner axis is not worth a vector loop
  static constexpr int64_t kBlock = 128;  // outputs of a phase that are computed together
  static constexpr int64_t kShift = 8;    // largest difference between the offsets of a phase's terms
  static constexpr int64_t kTerms = 4;    // terms added at once

  // A part of the axis with periodic rows: row OUT k + p adds x[first + IN k + offset] times weight over the terms of
  // phase p, for k in [0, count). Scaling by 2 and 1/2 has this form; it needs no index tables.
  template <int OUT, int IN>
  struct Phases {
    struct Term {
      int64_t stream, shift;  // offset = IN shift + stream
      T weight;
    };
    int64_t row = 0, first = 0, count = 0, shift = 0;  // `shift` is the largest of all terms
    std::vector<Term> terms[OUT];
  };

  // y = Σ_t w[t] times the n elements at at(t), four terms at a time.
  template <typename At>
  [[gnu::always_inline]] static void sum_rows(int64_t terms, const T* w, T* __restrict y, int64_t n, const At& at) {
    const T* x[kTerms];
    const int64_t some = std::min(terms, kTerms);
    for (int64_t t = 0; t < kTerms; ++t) x[t] = t < some ? at(t) : nullptr;
    sum_of_products(x, w, some, n, y);
    if constexpr (std::is_floating_point_v<T>) {
      for (int64_t t = kTerms; t < terms; ++t) {
        const T* __restrict a = at(t);
        const T u = w[t];
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] += u * a[i];
      }
    }
  }

  [[gnu::always_inline]] void run_flat(const T* x, T* y) const {
    if (doubling_.count > 0) {
      run_phases(doubling_, x, y);
    } else if (halving_.count > 0) {
      run_phases(halving_, x, y);
    } else if (terms_ == 1) {
      look_up<1>(x, y);
    } else if (terms_ == 2) {
      look_up<2>(x, y);
    } else if (terms_ == 4) {
      look_up<4>(x, y);
    } else {
      run_rows(x, 0, out_ * inner_, y);
    }
  }

  [[gnu::always_inline]] void run_rows(const T* x, int64_t begin, int64_t end, T* y) const {
    for (int64_t i = begin; i < end; ++i) {
      T sum = 0;
      const int64_t first = begin_[static_cast<size_t>(i)], last = begin_[static_cast<size_t>(i) + 1];
      if (last - first == 1 && weights_[static_cast<size_t>(first)] == 1) {
        sum = x[columns_[static_cast<size_t>(first)]];
      } else if constexpr (std::is_floating_point_v<T>) {
        for (auto t = static_cast<size_t>(first); t < static_cast<size_t>(last); ++t)
          sum += weights_[t] * x[columns_[t]];
      }
      y[i] = sum;
    }
  }

  template <int OUT, int IN>
  [[gnu::always_inline]] void run_phases(const Phases<OUT, IN>& phases, const T* x, T* y) const {
    const int64_t end = phases.row + OUT * phases.count;
    run_rows(x, 0, phases.row, y);
    for (int64_t k = 0; k < phases.count; k += kBlock) {
      const int64_t n = std::min(kBlock, phases.count - k);
      run_block(phases, x + phases.first + IN * k, n, y + phases.row + OUT * k);
    }
    run_rows(x, end, out_, y);
  }

  template <int OUT, int IN>
  [[gnu::always_inline]] static void run_block(const Phases<OUT, IN>& phases, const T* __restrict x, int64_t n,
                                               T* __restrict y) {
    constexpr int64_t kStream = kBlock + kShift;
    T split[IN == 1 ? 1 : IN * kStream], made[OUT == 1 ? 1 : OUT * kBlock];
    const T* streams[IN] = {x};
    if constexpr (IN > 1) {
      const int64_t needed = n + phases.shift;
#pragma omp simd
      for (int64_t i = 0; i < needed; ++i) {
        for (int s = 0; s < IN; ++s) split[s * kStream + i] = x[IN * i + s];
      }
      for (int s = 0; s < IN; ++s) streams[s] = split + s * kStream;
    }
    for (int p = 0; p < OUT; ++p) {
      const auto& terms = phases.terms[p];
      T weights[2 * IN * kShift];
      for (size_t t = 0; t < terms.size(); ++t) weights[t] = terms[t].weight;
      sum_rows(static_cast<int64_t>(terms.size()), weights, OUT == 1 ? y : made + p * kBlock, n, [&](int64_t t) {
        const auto& term = terms[static_cast<size_t>(t)];
        return streams[term.stream] + term.shift;
      });
    }
    if constexpr (OUT > 1) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        for (int p = 0; p < OUT; ++p) y[OUT * i + p] = made[p * kBlock + i];
      }
    }
  }

  // Up to TERMS terms per row, read through tables. A missing term has weight 0 and reads nothing.
  template <int TERMS>
  [[gnu::always_inline]] void look_up(const T* __restrict x, T* __restrict y) const {
    const int64_t n = out_ * inner_;
    const int32_t* __restrict at = indices_.data();
    const T* __restrict w = factors_.data();
    if constexpr (TERMS == 1) {
      if (selects_) {
        for (int64_t i = 0; i < n; ++i) y[i] = x[at[i]];
        return;
      }
    }
    if constexpr (std::is_floating_point_v<T>) {
      for (int64_t i = 0; i < n; ++i) {
        T sum = 0;
        for (int t = 0; t < TERMS; ++t) {
          const T factor = w[t * n + i], product = factor * x[at[t * n + i]];
          sum += factor == 0 ? T{0} : product;
        }
        y[i] = sum;
      }
    } else {
      run_rows(x, 0, n, y);
    }
  }

  void make_columns_of_terms() {
    const int64_t n = out_ * inner_;
    int64_t most = 0;
    for (int64_t i = 0; i < n; ++i) most = std::max(most, count(i));
    if (most == 0 || most > kTerms || in_ * inner_ > std::numeric_limits<int32_t>::max()) return;
    terms_ = most == 3 ? 4 : most;
    selects_ = most == 1 && std::all_of(weights_.begin(), weights_.end(), [](T w) { return w == 1; });
    indices_.resize(static_cast<size_t>(terms_ * n));
    factors_.resize(indices_.size());
    for (int64_t i = 0; i < n; ++i) {
      selects_ = selects_ && count(i) == 1;
      for (int64_t t = 0; t < count(i); ++t) {
        const auto entry = static_cast<size_t>(begin_[static_cast<size_t>(i)] + t);
        indices_[static_cast<size_t>(t * n + i)] = static_cast<int32_t>(columns_[entry]);
        factors_[static_cast<size_t>(t * n + i)] = weights_[entry];
      }
    }
  }

  int64_t count(int64_t i) const { return begin_[static_cast<size_t>(i) + 1] - begin_[static_cast<size_t>(i)]; }

  // Whether row i equals row i - out, shifted by `in` columns.
  bool follows(int64_t i, int64_t out, int64_t in) const {
    if (i < out || count(i) == 0 || count(i) != count(i - out)) return false;
    for (int64_t t = 0; t < count(i); ++t) {
      const auto now = static_cast<size_t>(begin_[static_cast<size_t>(i)] + t);
      const auto before = static_cast<size_t>(begin_[static_cast<size_t>(i - out)] + t);
      if (columns_[now] != columns_[before] + in || weights_[now] != weights_[before]) return false;
    }
    return true;
  }

  // Finds the longest periodic part; false if it covers too little of the axis.
  template <int OUT, int IN>
  bool find_phases(Phases<OUT, IN>* found) const {
    if (inner_ != 1) return false;
    int64_t best = 0, length = 0, run = 0;
    for (int64_t i = 0; i < out_; ++i) {
      run = follows(i, OUT, IN) ? run + 1 : 0;
      if (run > length) length = run, best = i + 1 - run;
    }
    Phases<OUT, IN> phases;
    phases.row = best - OUT;
    phases.count = length / OUT + 1;
    if (length < OUT || 2 * OUT * phases.count < out_) return false;
    phases.first = std::numeric_limits<int64_t>::max();
    for (int p = 0; p < OUT; ++p) {
      const auto entry = static_cast<size_t>(begin_[static_cast<size_t>(phases.row + p)]);
      phases.first = std::min(phases.first, columns_[entry]);
    }
    for (int p = 0; p < OUT; ++p) {
      const int64_t row = phases.row + p;
      for (int64_t t = 0; t < count(row); ++t) {
        const auto entry = static_cast<size_t>(begin_[static_cast<size_t>(row)] + t);
        const int64_t offset = columns_[entry] - phases.first;
        phases.terms[p].push_back({offset % IN, offset / IN, weights_[entry]});
        phases.shift = std::max(phases.shift, offset / IN);
      }
    }
    if (phases.shift >= kShift) return false;
    // All streams are read up to the end of the longest one.
    while (phases.count > 0 && phases.first + IN * (phases.count + phases.shift) > in_) --phases.count;
    if (phases.count == 0) return false;
    *found = std::move(phases);
    return true;
  }

  int64_t in_, out_, inner_;
  bool is_flat_, selects_ = false;
  std::vector<int64_t> begin_, columns_;  // terms [begin[i], begin[i + 1]) of row i
  std::vector<T> weights_;
  Phases<2, 1> doubling_;
  Phases<1, 2> halving_;
  int64_t terms_ = 0;  // terms per row in the tables below; 0: no tables
  std::vector<int32_t> indices_;
  std::vector<T> factors_;
};

}  // namespace onnx_train::cpu
