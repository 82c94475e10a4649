// The kernels of BlockAttentionGrad. A block of threads holds kKeys keys of a head, and the sums of their gradients in
// registers, and walks over blocks of kQueries queries:
//
//   S = Q Kᵀ,  P = exp(S - highest) / sum,  dP = dY Vᵀ,  dS = P (dP - mean) scale,  dV += Pᵀ dY,  dK += dSᵀ Q,  dQ +=
//   dS K
//
// A gradient of queries is a sum over blocks of threads, which are added in the order of their keys: a counter for each
// block of queries says how many have been added. All blocks walk from the last queries to the first, so that none
// waits for long, and take their keys in the order in which they start, so that the one for which a block waits has
// started. Under a causal mask those that start first have the most queries.
#pragma once

#include "kernels/cuda/attention/problem.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::cuda {

// kBlocks is the number of blocks that a processor shall run at once, which bounds the registers.
template <int kWidth_, int kQueries_, int kKeys_, int kDown = 8, int kBlocks_ = 1>
struct AttentionGradientTiles {
  static constexpr int kWidth = kWidth_, kQueries = kQueries_, kKeys = kKeys_, kBlocks = kBlocks_;
  using Threads = ThreadGrid<kDown, 16>;
  using QueryThreads = Threads;  // of the gradients of queries
  using Scores = RowsOfQueries<Threads>;
  static constexpr int kThreads = Threads::kThreads;
  static constexpr int kScoreRows = kQueries / Threads::kDown, kScoreColumns = kKeys / Threads::kAcross;  // of a thread
  static constexpr int kStride = kWidth + 4, kScoreStride = kKeys + 8;
  // Of shared memory: Q, dY, K, V, P or dS, and the statistics of the queries.
  static constexpr int kElements = 2 * (kQueries + kKeys) * kStride + kQueries * kScoreStride + 3 * kQueries;
};

// On tensor cores, S and dP are computed as K Qᵀ and V dYᵀ: then a thread has P and dS where the products with dY and Q
// need them, and only dQ takes dS from shared memory.
template <int kWidth_, int kQueries_, int kKeys_, int kBlocks_ = 1>
struct TensorCoreGradientTiles {
  static constexpr int kWidth = kWidth_, kQueries = kQueries_, kKeys = kKeys_, kBlocks = kBlocks_;
  using Threads = TensorCoreGrid<32, 4>;
  using QueryThreads = TensorCoreGrid<16, 8>;
  using Scores = RowsOfKeys<Threads>;
  static constexpr int kThreads = Threads::kThreads;
  static constexpr int kScoreRows = kKeys / Threads::kDown, kScoreColumns = kQueries / Threads::kAcross;
  static constexpr int kStride = kWidth + 4, kScoreStride = kKeys + 4;
  static constexpr int kElements = 2 * (kQueries + kKeys) * kStride + kQueries * kScoreStride + 3 * kQueries;
};

template <typename T>
struct AttentionGradient {
  Matrices<T> dy, y, dk, dv;
  Matrices<T> dq;  // stored as T, in fours: the result, or workspace that store_sums copies to it
  const T *highest, *sum;
  T *mean, *inverse;          // Σ dy y and 1 / sum of each query
  const BlockRange* queries;  // the blocks of queries that read each block of keys
  int query_blocks;
  int *next_keys, *num_added;  // the next block of keys to be taken; counters of the blocks of queries of each head
};

constexpr int kRowLanes = 8;  // the threads that share a row in prepare_rows

// mean = Σ dy y, inverse = 1 / sum
template <typename T>
__global__ void prepare_rows(int64_t rows, AttentionProblem<T> p, AttentionGradient<T> g) {
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kRowLanes;
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  T mean = 0;
  if (at < rows) {
    const int head = static_cast<int>(at / p.queries);
    const int64_t query = at - int64_t{head} * p.queries;
    const Matrix<T> dy = g.dy.of(head), y = g.y.of(head);
    for (int column = lane * 4; column < p.value_width; column += kRowLanes * 4) {
      T of_dy[4], of_y[4];
      dy.load(query, column, p.value_width, of_dy);
      y.load(query, column, p.value_width, of_y);
      for (int e = 0; e < 4; ++e) mean += of_dy[e] * of_y[e];
    }
  }
  for (int bit = 1; bit < kRowLanes; bit *= 2) {
    mean += exchange_words(mean, [=](unsigned w) { return __shfl_xor_sync(gpu::kAllLanes, w, bit); });
  }
  if (at < rows && lane == 0) {
    g.mean[at] = mean;
    g.inverse[at] = T{1} / g.sum[at];
  }
}

// to = from, of which each thread copies 4 elements of a row.
template <typename T>
__global__ void store_sums(int64_t n, int queries, int width, Matrices<T> from, Matrices<T> to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int fours = (width + 3) / 4;
  const int64_t at = i / fours, head = at / queries, query = at - head * queries;
  const int column = static_cast<int>(i - at * fours) * 4;
  T values[4];
  from.of(static_cast<int>(head)).load(query, column, width, values);
  to.of(static_cast<int>(head)).store(query, column, width, values);
}

// Copies kCount elements from `first` on to shared memory; those from `end` on become 0.
template <int kCount, typename T>
__device__ void load_row(T* to, const T* from, int first, int end) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kCount) gpu::copy_async<sizeof(T)>(to + i, first + i < end ? from + first + i : from, first + i < end);
}

// P = exp(S - highest) / sum
template <typename Scores, int kRows, int kColumns, typename T>
__device__ void make_probabilities(const T* highest, const T* inverse, T (&scores)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int query = Scores::query(r, c);
      scores[r][c] = math::exp(scores[r][c] - highest[query]) * inverse[query];
    }
  }
}

// dS = P (dP - mean) scale, in the place of dP. If the attention guards against NaN, such a probability becomes 0.
template <typename Scores, int kRows, int kColumns, typename T>
__device__ void make_score_gradients(const AttentionProblem<T>& p, const T* mean, T (&probabilities)[kRows][kColumns],
                                     T (&dp)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      T& probability = probabilities[r][c];
      if (p.nan_safe && probability != probability) probability = dp[r][c] = 0;
      dp[r][c] = probability * (dp[r][c] - mean[Scores::query(r, c)]) * p.scale;
    }
  }
}

template <typename T, typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kBlocks)
    attend_gradient(AttentionProblem<T> p, AttentionGradient<T> g) {
  using Threads = typename Tiles::Threads;
  using QueryThreads = typename Tiles::QueryThreads;
  using Scores = typename Tiles::Scores;
  constexpr int kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kWidth = Tiles::kWidth, kStride = Tiles::kStride,
                kScoreStride = Tiles::kScoreStride;
  constexpr int kRows = Tiles::kScoreRows, kColumns = Tiles::kScoreColumns, kKeyRows = kKeys / Threads::kDown,
                kEach = kWidth / Threads::kAcross, kQueryRows = kQueries / QueryThreads::kDown,
                kQueryEach = kWidth / QueryThreads::kAcross;
  GPU_DYNAMIC_SHARED(T, shared);
  T* const queries = shared;
  T* const gradients = queries + kQueries * kStride;
  T* const keys = gradients + kQueries * kStride;
  T* const values = keys + kKeys * kStride;
  T* const factors = values + kKeys * kStride;
  T* const highest = factors + kQueries * kScoreStride;
  T* const inverse = highest + kQueries;
  T* const mean = inverse + kQueries;
  GPU_SHARED(taken, int);
  GPU_SHARED(range, BlockRange);  // of blocks of queries; registers are scarce
  const bool is_first = threadIdx.x == 0;
  if (is_first) {
    taken = atomicAdd(g.next_keys, 1);
    range = g.queries[taken / p.heads];
  }
  __syncthreads();
  const int head = taken % p.heads, block = taken / p.heads, first_key = block * kKeys;

  // The last block of queries before `b` that reads the keys, or -1.
  const auto before = [&](int b) {
    for (--b; b >= range.begin; --b) {
      if (block >= p.key_blocks[b].begin && block < p.key_blocks[b].end) return b;
    }
    return -1;
  };
  const auto load = [&](int b) {
    const int first = b * kQueries;
    const int64_t row = int64_t{head} * p.queries;
    load_tile<kQueries, kWidth, kStride, Tiles::kThreads>(queries, p.q.of(head), first, p.queries, p.width);
    load_tile<kQueries, kWidth, kStride, Tiles::kThreads>(gradients, g.dy.of(head), first, p.queries, p.value_width);
    load_row<kQueries>(highest, g.highest + row, first, p.queries);
    load_row<kQueries>(inverse, g.inverse + row, first, p.queries);
    load_row<kQueries>(mean, g.mean + row, first, p.queries);
  };

  T key_sums[kKeyRows][kEach] = {}, value_sums[kKeyRows][kEach] = {};
  load_tile<kKeys, kWidth, kStride, Tiles::kThreads>(keys, p.k.of(head), first_key, p.keys, p.width);
  load_tile<kKeys, kWidth, kStride, Tiles::kThreads>(values, p.v.of(head), first_key, p.keys, p.value_width);
  // The number of blocks of keys that come before these.
  const auto place = [&](int b) { return block - p.key_blocks[b].begin; };
  const auto counter = [&](int b) { return g.num_added + (head * g.query_blocks + b); };
  const auto count = [&](int b) { gpu::store_release(counter(b), place(b) + 1); };
  int added = -1;  // the block of queries to which this block has added, but has not counted itself
  int b = before(range.end);
  if (b >= 0) load(b);
  // Each pair of tiles is one of twice as many rows.
  if constexpr (Threads::kOnTensorCores) wait_for_tile<Threads, 2 * kKeys, kWidth, kStride>(keys);
  while (b >= 0) {
    const KeyBlocks key_blocks = p.key_blocks[b];
    const int first = b * kQueries;
    const bool plain = is_plain(key_blocks, block) && first + kQueries <= p.queries;
    wait_for_tile<Threads, 2 * kQueries, kWidth, kStride>(queries);
    __syncthreads();  // the queries are there, and the sums that this block added to are written
    if (is_first && added >= 0) count(added);
    T scores[kRows][kColumns] = {}, dp[kRows][kColumns] = {};
    add_score_products<Scores, kWidth, kStride>(queries, keys, scores);
    make_scores<Scores>(p, head, plain, first, first_key, scores);
    make_probabilities<Scores>(highest, inverse, scores);
    add_score_products<Scores, kWidth, kStride>(gradients, values, dp);
    make_score_gradients<Scores>(p, mean, scores, dp);
    if (!plain) {
      const HeadMask<T> mask(p.mask, head);
      for_each_score<Scores>(first, first_key, dp, [&](int query, int key, T* gradient) {
        if (query >= p.queries || key >= p.keys || (mask.selects() && mask.hides(query, key))) *gradient = 0;
      });
    }
    if constexpr (Threads::kOnTensorCores) {
      round_factors(scores);
      add_products_of<Threads, kStride>(scores, gradients, value_sums);
      round_factors(dp);
      add_products_of<Threads, kStride>(dp, queries, key_sums);
      store_products<Threads, 1, kScoreStride>(factors, dp);
    } else {
      store_products<Threads, kScoreStride>(factors, scores);
      __syncthreads();
      add_column_products<Threads, kQueries, kScoreStride, kStride>(factors, gradients, value_sums);
      __syncthreads();
      store_products<Threads, kScoreStride>(factors, dp);
      __syncthreads();
      add_column_products<Threads, kQueries, kScoreStride, kStride>(factors, queries, key_sums);
    }
    const bool is_sum = place(b) > 0;  // of earlier blocks
    while (is_first && is_sum && gpu::load_acquire(counter(b)) < place(b)) {
    }
    __syncthreads();  // the queries have been read, and the block of keys before this one has been added
    const int following = before(b);
    if (following >= 0) load(following);
    T sums[kQueryRows][kQueryEach] = {};
    const Matrix<T> dq = g.dq.of(head);
    const auto for_each_four = [&](const auto& f) {
#pragma unroll
      for (int r = 0; r < kQueryRows; ++r) {
        const int query = first + QueryThreads::row() + r * QueryThreads::kDown;
#pragma unroll
        for (int e = 0; e < kQueryEach; e += 4) {
          const int column = QueryThreads::four(e / 4) * 4;
          if (query < p.queries && column < p.width) {
            f(gpu::vector_at<Four<T>>(dq.template at<T>(query, column)), sums[r] + e);
          }
        }
      }
    };
    if (is_sum) {
      for_each_four([](const Four<T>* four, T* of_four) {
#pragma unroll
        for (int e = 0; e < 4; ++e) of_four[e] = four->at[e];
      });
    }
    add_products<QueryThreads, kKeys, kScoreStride, kStride>(factors, keys, sums);
    for_each_four([](Four<T>* four, const T* of_four) {
#pragma unroll
      for (int e = 0; e < 4; ++e) four->at[e] = of_four[e];
    });
    added = b;
    b = following;
  }
  __syncthreads();
  if (is_first && added >= 0) count(added);
  const Matrix<T> dk = g.dk.of(head), dv = g.dv.of(head);
#pragma unroll
  for (int r = 0; r < kKeyRows; ++r) {
    const int key = first_key + Threads::factor_row(r);
    if (key >= p.keys) continue;
#pragma unroll
    for (int e = 0; e < kEach; e += 4) {
      const int column = Threads::four(e / 4) * 4;
      dk.store(key, column, p.width, key_sums[r] + e);
      dv.store(key, column, p.value_width, value_sums[r] + e);
    }
  }
}

}  // namespace onnx_train::cuda
