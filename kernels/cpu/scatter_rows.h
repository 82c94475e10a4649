// Rows that are added (or multiplied, ...) into other rows, several perhaps into the same one: what GatherGrad and
// ScatterND do. A thread owns columns, not rows, and takes the rows in their order: results do not depend on the
// number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"

namespace onnx_train::cpu {

struct RowScatter {
  int64_t outer;        // independent problems, one after the other in memory
  int64_t from_rows;    // of each
  int64_t to_elements;  // of each
  int64_t columns;      // of a row
};

// For each row r: to[offsets[r] + c] = combine(to[offsets[r] + c], from[r, c]).
template <typename T, typename Combine>
void scatter_rows(const RowScatter& s, const int64_t* offsets, const T* from, T* to, Combine combine) {
  constexpr int64_t kBlock = 64;  // columns that one thread takes at a time
  const int64_t blocks = (s.columns + kBlock - 1) / kBlock;
  const int64_t grain = kElementGrain / (std::max<int64_t>(s.from_rows, 1) * std::min(kBlock, s.columns) + 1) + 1;
  parallel_for(s.outer * blocks, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t outer = begin / blocks, first = begin % blocks;
      const int64_t taken = std::min(blocks - first, end - begin);
      const int64_t c0 = first * kBlock, c1 = std::min((first + taken) * kBlock, s.columns);
      for (int64_t r = 0; r < s.from_rows; ++r) {
        const T* __restrict f = from + (outer * s.from_rows + r) * s.columns;
        T* __restrict t = to + outer * s.to_elements + offsets[r];
        for (int64_t c = c0; c < c1; ++c) t[c] = combine(t[c], f[c]);
      }
      begin += taken;
    }
  });
}

}  // namespace onnx_train::cpu
