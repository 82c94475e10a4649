// The operands of an attention, and the scores that a block of threads computes from them. For kernels.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/tensor_core_tiles.h"
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

// The mask of one head. The kernel's parameters hold what all heads share, which costs no registers.
template <typename T>
class HeadMask {
 public:
  __device__ HeadMask(const Mask<T>& mask, int head) : mask_(mask) {
    if (mask.kind == MaskKind::kNone) return;
    const int64_t start = mask.planes[head] * mask.rows * mask.columns;
    plane_ = static_cast<const char*>(mask.data) + start * static_cast<int64_t>(adds() ? sizeof(T) : sizeof(bool));
  }
  __device__ bool adds() const { return mask_.kind == MaskKind::kAdded; }
  __device__ T added(int query, int key) const { return reinterpret_cast<const T*>(plane_)[at(query, key)]; }
  __device__ bool selects() const {
    return mask_.kind == MaskKind::kKeptWhereTrue || mask_.kind == MaskKind::kKeptWhereFalse;
  }
  // Whether a bool mask hides the score.
  __device__ bool hides(int query, int key) const {
    return reinterpret_cast<const bool*>(plane_)[at(query, key)] != (mask_.kind == MaskKind::kKeptWhereTrue);
  }

 private:
  __device__ int64_t at(int query, int key) const { return (mask_.rows == 1 ? 0 : query * mask_.columns) + key; }

  const Mask<T>& mask_;
  const char* plane_ = nullptr;
};

// Whether the mask changes no score of a block of keys, all of which exist.
__device__ inline bool is_plain(const KeyBlocks& blocks, int block) {
  return block >= blocks.plain_begin && block < blocks.plain_end;
}

// Which query and which key of a tile the thread's element (r, c) of the scores belongs to.
template <typename Threads_>
struct RowsOfQueries {
  using Threads = Threads_;
  static constexpr bool kRowsAreKeys = false;
  __device__ static int query(int r, int /*c*/) { return Threads::row() + r * Threads::kDown; }
  __device__ static int key(int /*r*/, int c) { return Threads::column() + c * Threads::kAcross; }
};
template <typename Threads_>
struct RowsOfKeys {
  using Threads = Threads_;
  static constexpr bool kRowsAreKeys = true;
  __device__ static int query(int /*r*/, int c) { return Threads::column() + c * Threads::kAcross; }
  __device__ static int key(int r, int /*c*/) { return Threads::row() + r * Threads::kDown; }
};

// Calls f(query, key, &values[r][c]) for each of the thread's elements of a tile.
template <typename Scores, int kRows, int kColumns, typename T, typename F>
__device__ void for_each_score(int first_query, int first_key, T (&values)[kRows][kColumns], const F& f) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      f(first_query + Scores::query(r, c), first_key + Scores::key(r, c), &values[r][c]);
    }
  }
}

// sums += the products of rows of two tiles, one of queries and one of keys.
template <typename Scores, int kWidth, int kStride, int kRows, int kColumns, typename T>
__device__ void add_score_products(const T* of_queries, const T* of_keys, T (&sums)[kRows][kColumns]) {
  const T *const rows = Scores::kRowsAreKeys ? of_keys : of_queries, *const columns =
                                                                         Scores::kRowsAreKeys ? of_queries : of_keys;
  add_row_products<typename Scores::Threads, kWidth, kStride>(rows, columns, sums);
}

// Makes scores of the products of queries and keys. Scores of keys, and of queries, that do not exist become -inf.
template <typename Scores, int kRows, int kColumns, typename T>
__device__ void make_scores(const AttentionProblem<T>& p, int head, bool plain, int first_query, int first_key,
                            T (&scores)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) scores[r][c] *= p.scale;
  }
  if (plain) return;
  const HeadMask<T> mask(p.mask, head);
  const auto update = [&](const auto& f) {
    for_each_score<Scores>(first_query, first_key, scores, [&](int query, int key, T* score) {
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
