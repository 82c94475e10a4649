// The index map of an element-wise operator's operands. Dimensions of size 1 are dropped, and dimensions that all
// operands traverse alike are merged, so that most operators become one or two long loops. Built in `prepare`;
// immutable, so any thread may read it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

class Broadcast {
 public:
  static constexpr size_t kMaxOperands = 3;
  static constexpr size_t kMaxRank = 12;  // after merging
  using Offsets = std::array<int64_t, kMaxOperands>;

  // Throws Error if `operands` do not broadcast to `out`.
  Broadcast(const Shape& out, const std::vector<Shape>& operands);

  int64_t size() const { return size_; }
  size_t rank() const { return rank_; }
  // Size of dimension d, counted from the innermost, and the operand's stride along it, in elements.
  int64_t dim(size_t d) const { return dims_[d]; }
  int64_t stride(size_t d, size_t operand) const { return strides_[d][operand]; }
  // Whether the operand advances by one element along the innermost loop; otherwise it stays at one element.
  bool moves(size_t operand) const { return rank_ == 0 || strides_[0][operand] != 0; }

  // Length of the innermost loop: runs start at its multiples.
  int64_t run_length() const { return rank_ == 0 ? std::max<int64_t>(size_, 1) : dims_[0]; }
  // is_scalar: one element for the whole output. repeats: one row of run_length() that every run reads.
  bool is_scalar(size_t operand) const { return !moves(operand) && rank_ == 1; }
  bool repeats(size_t operand) const { return rank_ == 2 && moves(operand) && strides_[1][operand] == 0; }
  // The operand's offset for element `index` of the output.
  int64_t offset(size_t operand, int64_t index) const;
  bool operator==(const Broadcast&) const = default;

  // Traverses output elements [begin, end) in runs along the innermost dimension. Calls f(first, count, offsets) with
  // the first output element and the operands' offsets there.
  template <typename F>
  void for_each_run(int64_t begin, int64_t end, F&& f) const;

 private:
  int64_t size_ = 0;
  size_t rank_ = 0;
  std::array<int64_t, kMaxRank> dims_{};     // innermost first
  std::array<Offsets, kMaxRank> strides_{};  // in elements, by dimension
};

// Output 0 may overwrite any of the first `inputs` inputs that has as many elements of the same size.
std::vector<InPlace> in_place_of_equal_inputs(const NodeSpec& spec, int inputs);

// Output 0 of a variadic operator may overwrite only the first two inputs: it combines these and then adds one input at
// a time, so later inputs are read after the output has been written.
std::vector<InPlace> in_place_of_first_two(const NodeSpec& spec);

inline int64_t Broadcast::offset(size_t operand, int64_t index) const {
  int64_t at = 0;
  for (size_t d = 0; d < rank_; ++d) {
    at += index % dims_[d] * strides_[d][operand];
    index /= dims_[d];
  }
  return at;
}

template <typename F>
void Broadcast::for_each_run(int64_t begin, int64_t end, F&& f) const {
  Offsets offsets{};
  if (rank_ == 0) {
    if (begin < end) f(begin, end - begin, offsets);
    return;
  }
  std::array<int64_t, kMaxRank> index{};
  int64_t rest = begin;
  for (size_t d = 0; d < rank_; ++d) {
    index[d] = rest % dims_[d];
    rest /= dims_[d];
    for (size_t k = 0; k < kMaxOperands; ++k) offsets[k] += index[d] * strides_[d][k];
  }
  for (int64_t first = begin; first < end;) {
    const int64_t count = std::min(dims_[0] - index[0], end - first);
    f(first, count, offsets);
    first += count;
    for (size_t k = 0; k < kMaxOperands; ++k) offsets[k] -= index[0] * strides_[0][k];
    index[0] = 0;
    for (size_t d = 1; d < rank_; ++d) {
      for (size_t k = 0; k < kMaxOperands; ++k) offsets[k] += strides_[d][k];
      if (++index[d] < dims_[d]) break;
      for (size_t k = 0; k < kMaxOperands; ++k) offsets[k] -= dims_[d] * strides_[d][k];
      index[d] = 0;
    }
  }
}

}  // namespace onnx_train
