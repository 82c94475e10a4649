// How the operands of an element-wise operator are walked together. Dimensions of size one vanish and neighbours that
// all operands walk alike become one, so that most operators end as one or two long loops. Made in `prepare`; any
// thread may read it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "onnx_passes/ir/types.h"

namespace onnx_train::cpu {

class Broadcast {
 public:
  static constexpr size_t kMaxOperands = 3;
  static constexpr size_t kMaxRank = 12;  // of what is left after merging
  using Offsets = std::array<int64_t, kMaxOperands>;

  // `operands` broadcast to `out`; throws Error when they do not.
  Broadcast(const Shape& out, const std::vector<Shape>& operands);

  int64_t size() const { return size_; }
  // Whether the operand moves along the innermost loop, by one element; it stays where it is otherwise.
  bool moves(size_t operand) const { return rank_ == 0 || strides_[0][operand] != 0; }

  // The innermost loop's length: runs begin at its multiples.
  int64_t run_length() const { return rank_ == 0 ? std::max<int64_t>(size_, 1) : dims_[0]; }
  // Whether the operand is one number for all elements, or a row of run_length() that every row reads anew.
  bool is_scalar(size_t operand) const { return !moves(operand) && rank_ == 1; }
  bool repeats(size_t operand) const { return rank_ == 2 && moves(operand) && strides_[1][operand] == 0; }
  // Where the operand is read for the output's element `index`.
  int64_t offset(size_t operand, int64_t index) const;
  bool operator==(const Broadcast&) const = default;

  // Walks the output's elements [begin, end) in runs along the innermost dimension: f(first, count, offsets), where
  // `first` is the run's first output element and `offsets` where each operand's run starts.
  template <typename F>
  void for_each_run(int64_t begin, int64_t end, F&& f) const;

 private:
  int64_t size_ = 0;
  size_t rank_ = 0;
  std::array<int64_t, kMaxRank> dims_{};     // innermost first
  std::array<Offsets, kMaxRank> strides_{};  // in elements, by dimension
};

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

}  // namespace onnx_train::cpu
