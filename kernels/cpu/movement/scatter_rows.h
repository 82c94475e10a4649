// Scatters rows into other rows, of which several may have the same target: GatherGrad and ScatterND. A thread owns
// columns, not rows, and processes the rows in order, so results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/cpu/support/parallel.h"

namespace onnx_train::cpu {

// Calls f with the functor that `reduction` names.
template <typename T, typename F>
auto with_reduction(const std::string& reduction, F&& f) {
  if (reduction == "add") return f([](T a, T b) { return static_cast<T>(a + b); });
  if (reduction == "mul") return f([](T a, T b) { return static_cast<T>(a * b); });
  if (reduction == "max") return f([](T a, T b) { return a < b ? b : a; });
  return f([](T a, T b) { return b < a ? b : a; });
}

struct RowScatter {
  int64_t outer;        // independent problems, stored one after the other
  int64_t from_rows;    // per problem
  int64_t to_elements;  // per problem
  int64_t columns;      // elements in a row
};

// For each row r: to[offsets[r] + c] = combine(to[offsets[r] + c], from[r, c]).
template <typename From, typename T, typename Combine>
void scatter_rows(const RowScatter& s, const int64_t* offsets, const From* from, T* to, Combine combine) {
  constexpr int64_t kBlock = 64;  // columns per thread at a time
  const int64_t blocks = (s.columns + kBlock - 1) / kBlock;
  const int64_t grain = kElementGrain / (std::max<int64_t>(s.from_rows, 1) * std::min(kBlock, s.columns) + 1) + 1;
  parallel_for(s.outer * blocks, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t outer = begin / blocks, first = begin % blocks;
      const int64_t taken = std::min(blocks - first, end - begin);
      const int64_t c0 = first * kBlock, c1 = std::min((first + taken) * kBlock, s.columns);
      for (int64_t r = 0; r < s.from_rows; ++r) {
        const From* __restrict f = from + (outer * s.from_rows + r) * s.columns;
        T* __restrict t = to + outer * s.to_elements + offsets[r];
        if (s.columns == 1) {
          *t = combine(*t, *f);
          continue;
        }
        for (int64_t c = c0; c < c1; ++c) t[c] = combine(t[c], f[c]);
      }
      begin += taken;
    }
  });
}

}  // namespace onnx_train::cpu
