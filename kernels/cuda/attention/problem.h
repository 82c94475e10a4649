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
  __device__ HeadMask(const Mask<T>& mask, int head) : kind_(mask.kind), data_(mask.data) {
    if (kind_ == MaskKind::kNone) return;
    start_ = mask.planes[head] * mask.rows * mask.columns;
    stride_ = mask.rows == 1 ? 0 : mask.columns;
  }
  __device__ bool selects() const { return kind_ == MaskKind::kKeptWhereTrue || kind_ == MaskKind::kKeptWhereFalse; }
  // Whether a bool mask hides the score.
  __device__ bool hides(int query, int key) const {
    return static_cast<const bool*>(data_)[at(query, key)] != (kind_ == MaskKind::kKeptWhereTrue);
  }
  __device__ bool adds() const { return kind_ == MaskKind::kAdded; }
  __device__ T added(int query, int key) const { return static_cast<const T*>(data_)[at(query, key)]; }

 private:
  __device__ int64_t at(int query, int key) const { return start_ + query * stride_ + key; }

  MaskKind kind_;
  const void* data_;
  int64_t start_ = 0, stride_ = 0;
};

// Whether the mask changes no score of a block of keys, all of which exist.
__device__ inline bool is_plain(const KeyBlocks& blocks, int block) {
  return block >= blocks.plain_begin && block < blocks.plain_end;
}

// Calls f(query, key, &values[r][c]) for each of the thread's elements of a tile.
template <typename Threads, int kRows, int kColumns, typename T, typename F>
__device__ void for_each_score(int first_query, int first_key, T (&values)[kRows][kColumns], const F& f) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      f(first_query + Threads::row() + r * Threads::kDown, first_key + Threads::column() + c * Threads::kAcross,
        &values[r][c]);
    }
  }
}

// Makes scores of the products of queries and keys. Scores of keys, and of queries, that do not exist become -inf.
template <typename Threads, int kRows, int kColumns, typename T>
__device__ void make_scores(const AttentionProblem<T>& p, const HeadMask<T>& mask, bool plain, int first_query,
                            int first_key, T (&scores)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) scores[r][c] *= p.scale;
  }
  if (plain) return;
  const auto update = [&](const auto& f) {
    for_each_score<Threads>(first_query, first_key, scores, [&](int query, int key, T* score) {
      *score = query < p.queries && key < p.keys ? f(query, key, *score) : -static_cast<T>(INFINITY);
    });
  };
  if (mask.adds()) {
    update([&](int query, int key, T score) { return score + mask.added(query, key); });
  } else if (mask.selects()) {
    update([&](int query, int key, T score) { return mask.hides(query, key) ? p.mask.fill : score; });
  } else {
    update([](int, int, T score) { return score; });
  }
}

}  // namespace onnx_train::cuda
