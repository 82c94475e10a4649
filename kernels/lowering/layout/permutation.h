// Permutations of a tensor's axes, in the convention of Transpose and TransposedMatMul. Pure functions; any thread.
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

// Exchanges the last two entries of `permutation`, which must have at least two.
inline Permutation swapped(Permutation permutation) {
  std::swap(permutation[permutation.size() - 1], permutation[permutation.size() - 2]);
  return permutation;
}

}  // namespace onnx_train
