// What the kernels of RNN, GRU and LSTM have in common.
//
// The part of a gate that comes from X is one product over all steps. The rest goes step by step, but sample by sample
// independently: the batch is cut into parts of a few rows, and one thread takes a part through all steps without
// waiting for anybody. How the batch is cut depends on its size only, so sums do not depend on the number of threads.
// Layouts are those of functions/recurrent.cc.
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/maps.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/place.h"
#include "onnx_passes/ir/recurrence.h"

namespace onnx_train::cpu {

struct Extents {
  int64_t steps = 0, batch = 0, directions = 0, hidden = 0;
  int64_t gates = 0;  // n of each direction

  int64_t samples() const { return steps * batch; }
  int64_t gate_row() const { return gates * hidden; }              // of one sample and direction
  int64_t gate_stride() const { return directions * gate_row(); }  // from sample to sample
  // Positions of a sample's row in [T, B, D, n H], in [T, D, B, H] and in [D, B, H].
  int64_t gate(int64_t t, int64_t d, int64_t b) const { return ((t * batch + b) * directions + d) * gate_row(); }
  int64_t value(int64_t t, int64_t d, int64_t b) const { return ((t * directions + d) * batch + b) * hidden; }
  int64_t state(int64_t d, int64_t b) const { return (d * batch + b) * hidden; }
  int64_t state_size() const { return directions * batch * hidden; }
};

// Some samples in one direction.
struct Part {
  size_t index;
  int64_t direction, first, rows;
};

std::vector<Part> cut_batch(const Extents& extents);

// Calls f(part) for all of them, on all threads in float32. BLAS brings its own threads: float64 takes one part after
// the other.
template <typename T, typename F>
void for_each_part(const std::vector<Part>& parts, const F& f) {
  if constexpr (std::is_same_v<T, double>) {
    for (const Part& part : parts) f(part);
  } else {
    parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(parts[static_cast<size_t>(i)]);
    });
  }
}

// y = a b_d or y + that, for the rows of a part; b_d is one direction's matrix, packed once in each run.
template <typename T>
class StepProduct {
 public:
  // `shape.m` is left to the parts.
  StepProduct(const std::vector<Part>& parts, GemmShape shape, int64_t directions, Workspace* workspace);
  void pack(const Args& args, const T* b, int64_t distance);  // b_d is at b + d distance
  void run(const Args& args, const Part& part, const T* a, T* y);

 private:
  std::vector<Gemm<T>> gemms_;  // of each part
  std::vector<Place> scratch_;  // of each part
  std::vector<Place> packed_;   // of each direction
  std::vector<const T*> b_;     // of each direction, in the run at hand
};

// The step's product forward, y = h rᵀ for `rows` rows of R, and backward, dh = dy r.
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

// Which step comes when.
struct Order {
  std::vector<bool> backwards;  // of each direction
  int64_t steps = 0;

  int64_t step(int64_t d, int64_t i) const { return is_backwards(d) ? steps - 1 - i : i; }
  int64_t before(int64_t d, int64_t t) const { return is_backwards(d) ? t + 1 : t - 1; }
  bool is_first(int64_t d, int64_t t) const { return t == step(d, 0); }
  bool is_backwards(int64_t d) const { return backwards[static_cast<size_t>(d)]; }
};

// `lengths` is null where all samples have every step.
inline bool is_live(const int32_t* lengths, int64_t t, int64_t b) { return !lengths || t < lengths[b]; }

// Output i of a kernel, or memory of its workspace where nobody wants it.
Place output_or_scratch(const NodeSpec& spec, int i, size_t bytes, Workspace* workspace);

// The gates' share of X: x Wᵀ + b for all steps and directions at once. `whole` says of which gates the second half of
// b is added, too.
template <typename T>
class InputProduct {
 public:
  InputProduct(const Extents& extents, int64_t input, bool bias, std::vector<bool> whole, Workspace* workspace);
  void run(const Args& args, const T* x, const T* w, const T* b, T* gates);

 private:
  void sum_biases(const T* b, T* sum) const;

  Extents extents_;
  bool bias_;
  std::vector<bool> whole_;
  Gemm<T> gemm_;
  Place scratch_, sum_;
};

// A first state [D, B, H]: the node's input i, or zeros.
template <typename T>
class FirstState {
 public:
  FirstState(const NodeSpec& spec, int i, const Extents& extents, Workspace* workspace);
  const T* get(const Args& args) const;

 private:
  int input_ = -1;
  int64_t size_;
  Place zeros_;
};

// What h was before each step of each direction, [D, T, B, H]: for the products with the gates' gradients.
template <typename T>
void copy_h_before(const Extents& e, const Order& order, const Part& part, const int32_t* lengths, const T* y,
                   const T* h0, T* h_before);

// dr_d = Σ over steps and samples of aᵀ b: a are `rows` columns of the gates' gradients (stride `a_stride`), b is
// [T B, H].
template <typename T>
class OuterProduct {
 public:
  OuterProduct(const Extents& extents, int64_t rows, int64_t a_stride, Workspace* workspace);
  void run(const Args& args, const T* a, const T* b, T* dr);

 private:
  Gemm<T> gemm_;
  Place scratch_;
};

// The inputs of a node of which some may be left out.
class OptionalInputs {
 public:
  explicit OptionalInputs(const NodeSpec& spec) {
    for (int i = 0; i < spec.num_inputs(); ++i) given_.push_back(spec.has_input(i));
  }
  bool has(size_t i) const { return i < given_.size() && given_[i]; }
  // Null where it is left out.
  template <typename T>
  const T* get(const Args& args, size_t i) const {
    return has(i) ? args.in<T>(static_cast<int>(i)) : nullptr;
  }

 private:
  std::vector<bool> given_;
};

// Sets a part's rows of `state` [D, B, H] to those of `first`, or to zeros where it is null.
template <typename T>
void start_state(const Extents& e, const Part& part, const T* first, T* state) {
  const int64_t begin = e.state(part.direction, part.first), end = begin + part.rows * e.hidden;
  if (first) {
    std::copy(first + begin, first + end, state + begin);
  } else {
    std::fill(state + begin, state + end, T{0});
  }
}

// Stores a sample's row of n; zeros for a step that the sample does not have.
template <typename T>
void store_row(bool live, int64_t n, const T* from, T* to) {
  live ? std::copy(from, from + n, to) : std::fill_n(to, n, T{0});
}

// y += x
template <typename T>
void add(int64_t n, const T* x, T* y) {
  map(n, x, true, y, true, y, [](T a, T b) { return a + b; });
}

// The element types and layout that the kernels take.
bool takes_recurrence(const NodeSpec& spec);

// Of a class that is made from a node's spec, and has `workspace()` and `run(args)`.
template <template <typename> typename Cell>
Prepared prepare_recurrence(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    const auto cell = std::make_shared<Cell<decltype(zero)>>(spec);
    return {[cell](const Args& args) { cell->run(args); }, cell->workspace(), {}};
  });
}

std::vector<Kernel> recurrent_kernels();  // all of them

std::vector<Kernel> lstm_kernels();
std::vector<Kernel> gru_kernels();
std::vector<Kernel> rnn_kernels();

}  // namespace onnx_train::cpu
