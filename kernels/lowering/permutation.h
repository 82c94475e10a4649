// Orders of a tensor's axes, as Transpose and TransposedMatMul have them.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace onnx_train {

using Permutation = std::vector<int64_t>;

inline Permutation identity(int64_t rank) {
  Permutation permutation(static_cast<size_t>(rank));
  std::iota(permutation.begin(), permutation.end(), 0);
  return permutation;
}

// With the last two axes in turn; there are two or more.
inline Permutation swapped(Permutation permutation) {
  std::swap(permutation[permutation.size() - 1], permutation[permutation.size() - 2]);
  return permutation;
}

}  // namespace onnx_train
