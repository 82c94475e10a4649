// The kernels of BlockAttention. A block of threads holds kQueries queries of a head and walks over blocks of kKeys
// keys: it multiplies, rescales what it has summed when a higher score comes (Milakov & Gimelshein 2018; Dao et al.
// 2022), and adds the values' products. While it multiplies queries and keys, the values are copied to shared memory,
// and the next keys while it multiplies probabilities and values.
//
// Where heads and queries make fewer blocks than the device runs at once, several blocks share the keys of a block of
// queries. Each writes a part of the result, and merge_parts adds the parts in a fixed order.
#pragma once

#include "kernels/cuda/attention/problem.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::cuda {

// kBlocks is the number of blocks that a processor shall run at once, which bounds the registers. All scores of a query
// are in one warp.
template <int kWidth_, int kQueries_, int kKeys_, int kBlocks_ = 1, typename Threads_ = ThreadGrid<16, 8>>
struct AttentionTiles {
  static constexpr int kWidth = kWidth_, kQueries = kQueries_, kKeys = kKeys_, kBlocks = kBlocks_;
  using Threads = Threads_;
  static constexpr int kThreads = Threads::kThreads;
  // Tensor cores take probabilities from registers.
  static constexpr int kStride = kWidth + 4, kScoreStride = Threads::kOnTensorCores ? 0 : kKeys + 8;
  static constexpr int kElements = (kQueries + 2 * kKeys) * kStride + kQueries * kScoreStride;  // of shared memory
};

__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

// The parts of a result: for each, and each query of each head, the highest score and the sum of exponentials, and the
// products that are not yet divided by the sum.
template <typename T>
struct AttentionParts {
  int count = 1;
  T *highest = nullptr, *sum = nullptr, *products = nullptr;
};

// The result's row of a query, and its statistics.
template <typename T>
struct AttentionRow {
  T highest, sum, factor;
  bool is_zero;

  // `larger` leaves NaN out, and a NaN among the scores makes the sum NaN.
  __device__ AttentionRow(const AttentionProblem<T>& p, T highest_score, T exponentials)
      : highest(highest_score), sum(exponentials) {
    if (sum != sum && highest < static_cast<T>(INFINITY)) highest = NAN;
    if (highest <= p.hidden) sum = NAN;  // like exp(-inf - -inf)
    is_zero = p.nan_safe && sum != sum;
    factor = T{1} / sum;
  }
  __device__ T operator()(T product) const { return is_zero ? T{0} : product * factor; }
};

// What is subtracted from a row's scores: nothing while all of them are -inf.
template <typename T>
__device__ T shift_of(T highest) {
  return highest == -static_cast<T>(INFINITY) ? T{0} : highest;
}

template <typename T, typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kBlocks)
    attend(AttentionProblem<T> p, AttentionParts<T> parts, Matrices<T> y, T* highest_of, T* sum_of) {
  using Threads = typename Tiles::Threads;
  constexpr int kRows = Tiles::kQueries / Threads::kDown, kColumns = Tiles::kKeys / Threads::kAcross,
                kWidth = Tiles::kWidth, kStride = Tiles::kStride, kScoreStride = Tiles::kScoreStride,
                kEach = kWidth / Threads::kAcross;
  GPU_DYNAMIC_SHARED(T, shared);
  T* const queries = shared;
  T* const keys = queries + Tiles::kQueries * kStride;
  T* const values = keys + Tiles::kKeys * kStride;
  T* const probabilities = values + Tiles::kKeys * kStride;

  // The last queries first: under a causal mask they have the most keys.
  const int head = static_cast<int>(blockIdx.x % p.heads),
            rest = static_cast<int>((gridDim.x - 1 - blockIdx.x) / p.heads), part = rest % parts.count,
            block = rest / parts.count, first = block * Tiles::kQueries;
  const KeyBlocks blocks = p.key_blocks[block];
  const int begin = blocks.begin + static_cast<int>(int64_t{blocks.end - blocks.begin} * part / parts.count),
            end = blocks.begin + static_cast<int>(int64_t{blocks.end - blocks.begin} * (part + 1) / parts.count);
  const Matrix<T> k = p.k.of(head), v = p.v.of(head);
  const auto load_keys = [&](T* tile, const Matrix<T>& from, int b, int width) {
    load_tile<Tiles::kKeys, kWidth, kStride, Tiles::kThreads>(tile, from, b * Tiles::kKeys, p.keys, width);
  };

  T sums[kRows][kEach] = {}, highest[kRows], sum[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) highest[r] = -static_cast<T>(INFINITY);
  load_tile<Tiles::kQueries, kWidth, kStride, Tiles::kThreads>(queries, p.q.of(head), first, p.queries, p.width);
  if (begin < end) load_keys(keys, k, begin, p.width);
  if constexpr (Threads::kOnTensorCores) wait_for_tile<Threads, Tiles::kQueries, kWidth, kStride>(queries);
  for (int b = begin; b < end; ++b) {
    wait_for_tile<Threads, Tiles::kKeys, kWidth, kStride>(keys);
    __syncthreads();  // the keys are there, and the values have been read
    load_keys(values, v, b, p.value_width);
    T scores[kRows][kColumns] = {};
    add_row_products<Threads, kWidth, kStride>(queries, keys, scores);
    make_scores<RowsOfQueries<Threads>>(p, head, is_plain(blocks, b), first, b * Tiles::kKeys, scores);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      T most = highest[r];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) most = larger(most, scores[r][c]);
      most = Threads::merge_across(most, [](T one, T other) { return larger(one, other); });
      const T shift = shift_of(most), factor = math::exp(highest[r] - shift);
      highest[r] = most;
      sum[r] *= factor;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        scores[r][c] = math::exp(scores[r][c] - shift);
        sum[r] += scores[r][c];
      }
#pragma unroll
      for (int e = 0; e < kEach; ++e) sums[r][e] *= factor;
    }
    if constexpr (Threads::kOnTensorCores) {
      round_factors(scores);
    } else {
      store_products<Threads, kScoreStride>(probabilities, scores);
    }
    wait_for_tile<Threads, Tiles::kKeys, kWidth, kStride>(values);
    __syncthreads();  // the values and the probabilities are there, and the keys have been read
    if (b + 1 < end) load_keys(keys, k, b + 1, p.width);
    if constexpr (Threads::kOnTensorCores) {
      add_products_of<Threads, kStride>(scores, values, sums);
    } else {
      add_products<Threads, Tiles::kKeys, kScoreStride, kStride>(probabilities, values, sums);
    }
  }

  const Matrix<T> result = y.of(head);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = Threads::merge_across(sum[r], Sum());
    const int query = first + Threads::row() + r * Threads::kDown;
    if (query >= p.queries) continue;
    const int64_t at = int64_t{head} * p.queries + query;
    if (parts.count > 1) {
      const int64_t of_part = part * int64_t{p.heads} * p.queries + at;
      parts.highest[of_part] = highest[r];
      parts.sum[of_part] = sum[r];
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int column = Threads::four(e / 4) * 4 + e % 4;
        if (column < p.value_width) parts.products[of_part * p.value_width + column] = sums[r][e];
      }
      continue;
    }
    const AttentionRow<T> row(p, highest[r], sum[r]);
    if (Threads::column() == 0) {
      highest_of[at] = row.highest;
      sum_of[at] = row.sum;
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) sums[r][e] = row(sums[r][e]);
#pragma unroll
    for (int e = 0; e < kEach; e += 4) {
      result.store(query, Threads::four(e / 4) * 4, p.value_width, sums[r] + e);
    }
  }
}

// One thread for each element of the result.
template <typename T>
__global__ void merge_parts(int64_t n, AttentionProblem<T> p, AttentionParts<T> parts, Matrices<T> y, T* highest_of,
                            T* sum_of) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int64_t at = i / p.value_width, rows = int64_t{p.heads} * p.queries;
  const int column = static_cast<int>(i - at * p.value_width);
  T highest = -static_cast<T>(INFINITY), sum = 0, product = 0;
  for (int part = 0; part < parts.count; ++part) highest = larger(highest, parts.highest[part * rows + at]);
  for (int part = 0; part < parts.count; ++part) {
    const T factor = math::exp(parts.highest[part * rows + at] - shift_of(highest));
    sum += parts.sum[part * rows + at] * factor;
    product += parts.products[(part * rows + at) * p.value_width + column] * factor;
  }
  const AttentionRow<T> row(p, highest, sum);
  if (column == 0) {
    highest_of[at] = row.highest;
    sum_of[at] = row.sum;
  }
  const int64_t head = at / p.queries, query = at - head * p.queries;
  const T value = row(product);
  const Matrix<T> result = y.of(static_cast<int>(head));
  result.dispatch([&]<typename S>(S) { *result.template at<S>(query, column) = math::convert<S>(value); });
}

}  // namespace onnx_train::cuda
