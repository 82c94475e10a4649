// The operands of an attention, and the scores that a block of threads computes from them. For kernels.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/tiles.h"
#include "kernels/geometry/attention.h"

namespace onnx_train::cuda {

template <typename T>
struct Mask {
  MaskKind kind = MaskKind::kNone;
  const void* data = nullptr;
  const int64_t* planes = nullptr;  // plane of each head
  int64_t rows = 0, columns = 0;
  T fill = 0;

  __device__ bool selects() const { return kind == MaskKind::kKeptWhereTrue || kind == MaskKind::kKeptWhereFalse; }
};

template <typename T>
struct AttentionProblem {
  Matrices<T> q, k, v;
  int heads, queries, keys, width, value_width;
  T scale;
  bool nan_safe;
  T hidden;  // rows with a highest score of at most this have a sum of NaN
  Mask<T> mask;
  const KeyBlocks* key_blocks;  // of each block of queries
};

// The mask of one head.
template <typename T>
class HeadMask {
 public:
  __device__ HeadMask(const Mask<T>& mask, int head) : mask_(mask) {
    if (mask.kind == MaskKind::kNone) return;
    start_ = mask.planes[head] * mask.rows * mask.columns;
    stride_ = mask.rows == 1 ? 0 : mask.columns;
  }
  // Whether a bool mask hides the score.
  __device__ bool hides(int query, int key) const {
    return mask_.selects() && static_cast<const bool*>(mask_.data)[at(query, key)] != (mask_.kind == MaskKind::kKeptWhereTrue);
  }
  __device__ T apply(T score, int query, int key) const {
    if (mask_.kind == MaskKind::kAdded) return score + static_cast<const T*>(mask_.data)[at(query, key)];
    return hides(query, key) ? mask_.fill : score;
  }

 private:
  __device__ int64_t at(int query, int key) const { return start_ + query * stride_ + key; }

  const Mask<T>& mask_;
  int64_t start_ = 0, stride_ = 0;
};

// Whether the mask changes no score of a block of keys.
__device__ inline bool is_plain(const KeyBlocks& blocks, int block) {
  return block >= blocks.plain_begin && block < blocks.plain_end;
}

// Makes scores of the products of queries and keys: first_query and first_key are those of the tile. Scores of keys, and
// of queries, that do not exist become -inf.
template <typename Threads, int kRows, int kColumns, typename T>
__device__ void make_scores(const AttentionProblem<T>& p, const HeadMask<T>& mask, bool plain, int first_query,
                            int first_key, T (&scores)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) scores[r][c] *= p.scale;
  }
  if (plain) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int query = first_query + Threads::row() + r * Threads::kDown;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int key = first_key + Threads::column() + c * Threads::kAcross;
      scores[r][c] = query < p.queries && key < p.keys ? mask.apply(scores[r][c], query, key) : -static_cast<T>(INFINITY);
    }
  }
}

}  // namespace onnx_train::cuda
