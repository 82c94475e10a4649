// The common code of the kernels of RNN, GRU and LSTM.
//
// The product of X and W is one product over all steps. The recurrence runs step by step, but samples are independent:
// the batch is cut into parts of a few rows, and one thread runs a part through all steps without synchronization. The
// cut depends only on the batch size, so sums do not depend on the number of threads. Layouts are those of
// functions/recurrent.cc.
//
// A cell computes in type T. Operand is the type of the operands of its products: T, or BFloat16 with T = float if
// mixed precision stores them rounded.
//
// All classes here belong to one prepared kernel, which runs on one thread at a time; within a run, different threads
// work on different parts.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/recurrent.h"
#include "kernels/math/convert.h"
#include "kernels/place.h"

namespace onnx_train::cpu {

// A range of samples in one direction.
struct BatchPart {
  size_t index;
  int64_t direction, first, rows;
};

std::vector<BatchPart> cut_batch(const Extents& extents);

// Calls f(part) for every part: in parallel for float32, one after the other for float64, where BLAS uses its own
// threads.
template <typename T, typename F>
void for_each_part(const std::vector<BatchPart>& parts, const F& f) {
  if constexpr (std::is_same_v<T, double>) {
    for (const BatchPart& part : parts) f(part);
  } else {
    parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(parts[static_cast<size_t>(i)]);
    });
  }
}

// y = a b_d or y + a b_d for the rows of a part; b_d is the matrix of a direction, packed once per run.
template <typename Operand>
class StepProduct {
 public:
  // `shape.m` is ignored: each part sets its own number of rows.
  StepProduct(const std::vector<BatchPart>& parts, GemmShape shape, int64_t directions, Workspace* workspace);
  void pack(const Launch& launch, const Operand* b, int64_t distance);  // b_d starts at b + d distance
  void run(const Launch& launch, const BatchPart& part, const Operand* a, Computed<Operand>* y);

 private:
  std::vector<Gemm<Operand>> gemms_;   // for each part
  std::vector<OperandPlace> scratch_;  // for each part
  std::vector<OperandPlace> packed_;   // for each direction
  std::vector<const Operand*> b_;      // for each direction, valid during the current run
};

// The products of a step: forward y = h rᵀ with `rows` rows of R, and backward dh = dy r.
inline GemmShape product_with_transpose(const Extents& e, int64_t rows, int64_t y_row, bool accumulate = true) {
  return {.n = rows,
          .k = e.hidden,
          .a_row = e.hidden,
          .b_row = 1,
          .b_column = e.hidden,
          .y_row = y_row,
          .accumulate = accumulate};
}
inline GemmShape product_with_rows(const Extents& e, int64_t rows, int64_t dy_row, bool accumulate = true) {
  return {.n = e.hidden, .k = rows, .a_row = dy_row, .b_row = e.hidden, .y_row = e.hidden, .accumulate = accumulate};
}

// The part of the gate sums that comes from X: x Wᵀ + b for all steps and directions at once. `whole` lists the gates
// to which the second half of b is added as well.
template <typename Operand>
class InputProduct {
 public:
  using T = Computed<Operand>;
  InputProduct(const Extents& extents, int64_t input, bool bias, std::vector<bool> whole, Workspace* workspace);
  void run(const Launch& launch, const Operand* x, const Operand* w, const T* b, T* gates);

 private:
  void sum_biases(const T* b, T* sum) const;

  Extents extents_;
  bool bias_;
  std::vector<bool> whole_;
  Gemm<Operand> gemm_;
  OperandPlace scratch_, sum_;
};

// An initial state [D, B, H]: input i of the node, converted to Operand if necessary, or zeros.
template <typename T>
class FirstState {
 public:
  FirstState(const NodeSpec& spec, int i, const Extents& extents, Workspace* workspace);
  const T* get(const Launch& launch) const;

 private:
  int input_ = -1;
  bool narrows_ = false;
  int64_t size_;
  OperandPlace made_;
};

// h before each step of each direction, [D, T, B, H]: an operand of the products with the gates' gradients.
template <typename T>
void copy_h_before(const Extents& e, const Order& order, const BatchPart& part, const int32_t* lengths, const T* y,
                   const T* h0, T* h_before);

// dr_d = Σ over steps and samples of aᵀ b: a is `rows` columns of the gates' gradients (row stride `a_stride`), b is [T
// B, H].
template <typename Operand>
class OuterProduct {
 public:
  OuterProduct(const Extents& extents, int64_t rows, int64_t a_stride, Workspace* workspace);
  void run(const Launch& launch, const Operand* a, const Operand* b, Computed<Operand>* dr);

 private:
  Gemm<Operand> gemm_;
  OperandPlace scratch_;
};

// ---- Rows of numbers

// Converts n elements to an operand of a product; `to` may be `from`. With `rounds`, T elements are rounded to bfloat16
// values.
template <typename T, typename Operand>
void to_operand(bool rounds, int64_t n, const T* from, Operand* to) {
  if constexpr (!std::is_same_v<T, Operand>) {
    map(n, from, to, [](T x) { return math::convert<Operand>(x); });
  } else if (rounds) {
    map(n, from, to, [](T x) { return math::convert<T>(math::convert<BFloat16>(x)); });
  } else if (from != to) {
    std::copy(from, from + n, to);
  }
}

template <typename T>
void widen(int64_t n, const BFloat16* from, T* to) {
  vectorized([=] {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = math::convert<T>(from[i]);
  });
}

// A tensor of type T or bfloat16; null if the node does not have it.
template <typename T>
class Stored {
 public:
  Stored() = default;
  Stored(const void* data, DType dtype) : data_(data), narrow_(dtype == DType::kBFloat16) {}

  explicit operator bool() const { return data_; }
  // Returns the n elements from offset `at` on, converted into `buffer` if necessary.
  const T* read(int64_t at, int64_t n, T* buffer) const {
    if (!narrow_) return static_cast<const T*>(data_) + at;
    widen(n, static_cast<const BFloat16*>(data_) + at, buffer);
    return buffer;
  }
  // Outputs only: stores a sample's row of n elements; zeros if the sample does not have this step.
  template <typename From>
  void write(bool live, int64_t at, int64_t n, const From* from) const {
    narrow_ ? write_as<BFloat16>(live, at, n, from) : write_as<T>(live, at, n, from);
  }

 private:
  template <typename To, typename From>
  void write_as(bool live, int64_t at, int64_t n, const From* from) const {
    To* to = static_cast<To*>(const_cast<void*>(data_)) + at;
    if (!live) {
      std::fill_n(to, n, To{});
    } else if constexpr (std::is_same_v<To, From>) {
      if (from != to) std::copy(from, from + n, to);
    } else {
      vectorized([=] {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) to[i] = math::convert<To>(from[i]);
      });
    }
  }

  const void* data_ = nullptr;
  bool narrow_ = false;
};

template <typename T>
class StoredOutput {
 public:
  StoredOutput(const NodeSpec& spec, int i)
      : i_(i), type_(i < spec.num_outputs() && spec.has_output(i) ? spec.out_type(i) : DType::kUndefined) {}
  Stored<T> get(const Launch& launch) const {
    return type_ == DType::kUndefined ? Stored<T>() : Stored<T>(launch.out<void>(i_), type_);
  }
  bool is_narrow() const { return type_ == DType::kBFloat16; }

 private:
  int i_;
  DType type_;
};

class OptionalInputs {
 public:
  explicit OptionalInputs(const NodeSpec& spec) {
    for (int i = 0; i < spec.num_inputs(); ++i) {
      types_.push_back(spec.has_input(i) ? spec.in_type(i) : DType::kUndefined);
    }
  }
  bool has(size_t i) const { return i < types_.size() && types_[i] != DType::kUndefined; }
  // Null if the input is absent.
  template <typename T>
  const T* get(const Launch& launch, size_t i) const {
    return has(i) ? launch.in<T>(static_cast<int>(i)) : nullptr;
  }
  template <typename T>
  Stored<T> stored(const Launch& launch, size_t i) const {
    return has(i) ? Stored<T>(launch.inputs[i], types_[i]) : Stored<T>();
  }

 private:
  std::vector<DType> types_;
};

// Sets a part's rows of `state` [D, B, H] to those of `first`, or to zeros if it is null.
template <typename T>
void start_state(const Extents& e, const BatchPart& part, const T* first, T* state) {
  const int64_t begin = e.state(part.direction, part.first), end = begin + part.rows * e.hidden;
  if (first) {
    std::copy(first + begin, first + end, state + begin);
  } else {
    std::fill(state + begin, state + end, T{});
  }
}

// The running state h [D, B, H]: an operand of the next step's product and finally output 1 of the node.
template <typename T, typename Operand>
class HiddenState {
 public:
  HiddenState(const NodeSpec& spec, const Extents& extents, size_t parts, Workspace* workspace)
      : extents_(extents), rounds_(find_recurrence(spec.node()).round_operands) {
    const auto bytes = [](int64_t count, size_t size) { return static_cast<size_t>(count) * size; };
    if constexpr (kInPlace) {
      h_ = output_or_scratch(spec, 1, bytes(extents.state_size(), sizeof(T)), workspace);
    } else {
      h_ = workspace->reserve(bytes(extents.state_size(), sizeof(Operand)));
      fresh_ = workspace->reserve(bytes(extents.hidden, parts * sizeof(T)));
      has_output_ = spec.num_outputs() > 1 && spec.has_output(1);
    }
  }

  // Copies a part's rows of h0 into the state. Returns the start of the whole state.
  Operand* start(const Launch& launch, const BatchPart& part, const Operand* h0) const {
    Operand* h = static_cast<Operand*>(address(h_, launch));
    start_state(extents_, part, h0, h);
    return h;
  }
  // Buffer for the next h of a sample; `store` converts it into `row`, `load` fills it from `row`.
  T* fresh(const Launch& launch, const BatchPart& part, Operand* row) const {
    if constexpr (kInPlace) {
      return row;
    } else {
      return static_cast<T*>(address(fresh_, launch)) + static_cast<int64_t>(part.index) * extents_.hidden;
    }
  }
  T* load(const Launch& launch, const BatchPart& part, Operand* row) const {
    T* to = fresh(launch, part, row);
    if constexpr (!kInPlace) widen(extents_.hidden, row, to);
    return to;
  }
  void store(const T* fresh, Operand* row) const { to_operand(rounds_, extents_.hidden, fresh, row); }
  // Writes output 1 after the last step.
  void finish(const Launch& launch, const BatchPart& part) const {
    if constexpr (!kInPlace) {
      const int64_t begin = extents_.state(part.direction, part.first);
      if (has_output_) {
        widen(part.rows * extents_.hidden, static_cast<Operand*>(address(h_, launch)) + begin,
              launch.out<T>(1) + begin);
      }
    }
  }

 private:
  static constexpr bool kInPlace = std::is_same_v<T, Operand>;

  Extents extents_;
  bool rounds_, has_output_ = false;
  OperandPlace h_, fresh_;
};

// y += x
template <typename T>
void add(int64_t n, const T* x, T* y) {
  map(n, x, true, y, true, y, [](T a, T b) { return a + b; });
}

// Whether the kernels support the node's element types with bfloat16 operands: X, W and R forward; R, y and dgates
// backward. Backward, `y` is the input number of y, and `stored` lists the inputs that may be bfloat16.
bool takes_bfloat16_forward(const NodeSpec& spec);
bool takes_bfloat16_backward(const NodeSpec& spec, int y, const std::vector<int>& stored);

std::vector<Kernel> lstm_kernels();
std::vector<Kernel> gru_kernels();
std::vector<Kernel> rnn_kernels();

}  // namespace onnx_train::cpu
