// Attention that never stores all of its scores, forward and backward: BlockAttention and BlockAttentionGrad
// (kernels/functions/attention.cc has their formulas).
//
// A block of threads holds rows of one matrix, queries or keys, and loops over the rows of the other in slices of
// kSlice, which it loads into shared memory. kLanes threads share kEachRow rows. Each computes the scores of its rows
// with kScores rows of a slice, and sums every kLanes-th column of the rows' results; it keeps operands in registers,
// so that a load from shared memory serves several products. The forward pass tracks the highest score and the sum of
// each row, and rescales the sums when a higher score comes (Milakov & Gimelshein 2018; Dao et al. 2022). The backward
// pass computes the scores again, once by queries (dq) and once by keys (dk, dv): one thread writes each element of a
// result and adds in a fixed order.
//
// If the mask is constant, slices that it hides entirely are skipped. A hidden key then does not count, even if it is
// NaN.
//
// Operands and results may be stored in 16 bits; everything is computed in T, float or double. The storage types are
// run-time values, because few elements are loaded per computed one.
#include <cmath>
#include <limits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/support/device_table.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/attention.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

using enum AttentionTensor;

constexpr int kGroups = 16, kSlice = 32, kLanes = 8;
constexpr int kBlock = kGroups * kLanes;  // threads: kLanes for each group of kEachRow rows
constexpr int kScores = kSlice / kLanes;  // rows of a slice per thread
constexpr size_t kSharedBytes = size_t{48} << 10;

// The matrices of an operand or result: the start of each, and the elements between rows.
template <typename T>
struct Matrices {
  void* data;
  const int64_t* starts;
  int64_t stride;
  DType stored;  // dtype_of<T>() or a 16-bit type

  __device__ int64_t place(int64_t head, int64_t row, int64_t column) const {
    return starts[head] + row * stride + column;
  }
  __device__ T load(int64_t head, int64_t row, int64_t column) const {
    const int64_t i = place(head, row, column);
    if (stored == DType::kBFloat16) return static_cast<T>(widened(static_cast<const BFloat16*>(data)[i]));
    if (stored == DType::kFloat16) return static_cast<T>(widened(static_cast<const __half*>(data)[i]));
    return static_cast<const T*>(data)[i];
  }
  __device__ void store(int64_t head, int64_t row, int64_t column, T value) const {
    const int64_t i = place(head, row, column);
    if (stored == DType::kBFloat16) {
      static_cast<BFloat16*>(data)[i] = math::convert<BFloat16>(value);
    } else if (stored == DType::kFloat16) {
      static_cast<__half*>(data)[i] = math::convert<__half>(value);
    } else {
      static_cast<T*>(data)[i] = value;
    }
  }
};

template <typename T>
struct Mask {
  MaskKind kind = MaskKind::kNone;
  const void* data = nullptr;
  const int64_t* planes = nullptr;  // plane of each head
  int64_t rows = 0, columns = 0;
  T fill = 0;

  __device__ bool selects() const { return kind == MaskKind::kKeptWhereTrue || kind == MaskKind::kKeptWhereFalse; }
  __device__ int64_t at(int64_t head, int64_t query, int64_t key) const {
    return (planes[head] * rows + (rows == 1 ? 0 : query)) * columns + key;
  }
  // Whether a bool mask hides the score.
  __device__ bool hides(int64_t head, int64_t query, int64_t key) const {
    return static_cast<const bool*>(data)[at(head, query, key)] != (kind == MaskKind::kKeptWhereTrue);
  }
  __device__ T apply(T score, int64_t head, int64_t query, int64_t key) const {
    if (kind == MaskKind::kNone) return score;
    if (kind == MaskKind::kAdded) return score + static_cast<const T*>(data)[at(head, query, key)];
    return hides(head, query, key) ? fill : score;
  }
};

template <typename T>
struct Problem {
  Matrices<T> q, k, v;
  int64_t heads, queries, keys, width, value_width;
  T scale;
  bool nan_safe;
  T hidden;  // rows with a highest score of at most this have a sum of NaN
  Mask<T> mask;
};

// The rows of the other matrix that a block of rows reads: a pair [begin, end) per block; null means all rows.
struct Ranges {
  const int64_t* of_blocks = nullptr;

  __device__ int64_t begin(int64_t block) const { return of_blocks ? of_blocks[2 * block] / kSlice * kSlice : 0; }
  __device__ int64_t end(int64_t block, int64_t all) const { return of_blocks ? of_blocks[2 * block + 1] : all; }
};

// Rows of `width` elements in shared memory; an odd number of elements between rows avoids bank conflicts.
__host__ __device__ inline int64_t tile_stride(int64_t width) { return width | 1; }

// Copies rows first.. first + kCount of a matrix into a tile; rows after `end` become 0.
template <int kCount, typename T>
__device__ void load_tile(T* tile, const Matrices<T>& from, int64_t head, int64_t first, int64_t end, int64_t width) {
  for (int64_t i = threadIdx.x; i < kCount * width; i += kBlock) {
    const int64_t row = i / width, column = i % width;
    tile[row * tile_stride(width) + column] = first + row < end ? from.load(head, first + row, column) : T{0};
  }
}

// Own row r of the thread's group in the block; own row j of a slice, or column of a result, of the thread.
__device__ int64_t own_row(int r) { return threadIdx.x / kLanes + r * kGroups; }
__device__ int64_t own_lane(int j) { return threadIdx.x % kLanes + j * kLanes; }

// results[r][j] = own row r · row own_lane(j) of the slice
template <int kEachRow, typename T>
__device__ void dot_products(const T* rows, const T* slice, int64_t width, T (&results)[kEachRow][kScores]) {
  const int64_t stride = tile_stride(width);
  for (auto& of_row : results) {
    for (T& result : of_row) result = 0;
  }
  for (int64_t d = 0; d < width; ++d) {
    T others[kScores];
#pragma unroll
    for (int j = 0; j < kScores; ++j) others[j] = slice[own_lane(j) * stride + d];
#pragma unroll
    for (int r = 0; r < kEachRow; ++r) {
      const T own = rows[own_row(r) * stride + d];
#pragma unroll
      for (int j = 0; j < kScores; ++j) results[r][j] += own * others[j];
    }
  }
}

// sums[r][j] += Σ factors[own row r][i] slice[i][own_lane(j)], over the rows i of the slice
template <int kEachRow, int kEach, typename T>
__device__ void add_products(const T* factors, const T* slice, int64_t width, T (&sums)[kEachRow][kEach]) {
  for (int i = 0; i < kSlice; ++i) {
    const T* row = slice + i * tile_stride(width);
    T own[kEachRow];
#pragma unroll
    for (int r = 0; r < kEachRow; ++r) own[r] = factors[own_row(r) * (kSlice + 1) + i];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (own_lane(j) >= width) break;
      const T other = row[own_lane(j)];
#pragma unroll
      for (int r = 0; r < kEachRow; ++r) sums[r][j] += own[r] * other;
    }
  }
}

// Merges the values of the threads of a group; every thread gets the result.
template <typename T, typename F>
__device__ T merge_group(T value, const F& merge) {
  for (int bits = 1; bits < kLanes; bits *= 2) {
    value = merge(value, exchange_words(value, [=](unsigned w) { return __shfl_xor_sync(gpu::kAllLanes, w, bits); }));
  }
  return value;
}

// The larger one; NaN if one is NaN.
template <typename T>
__device__ T higher(T a, T b) {
  return a != a ? a : b > a || b != b ? b : a;
}

template <int kEach, typename T>
__device__ void store_row(const Matrices<T>& to, int64_t head, int64_t row, int64_t width, const T (&values)[kEach],
                          T factor) {
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (own_lane(j) < width) to.store(head, row, own_lane(j), values[j] * factor);
  }
}

// The rows of a block of threads: kGroups kEachRow rows of a head.
template <int kEachRow>
struct OwnRows {
  static constexpr int kCount = kGroups * kEachRow;
  int64_t head, block, first;

  __device__ explicit OwnRows(int64_t rows) {
    const int64_t blocks = (rows + kCount - 1) / kCount;
    head = blockIdx.x / blocks;
    block = blockIdx.x - head * blocks;
    first = block * kCount;
  }
  __device__ int64_t row(int r) const { return first + own_row(r); }
};

template <typename T, int kEachRow, int kEach>
__global__ void attend(Problem<T> p, Ranges ranges, Matrices<T> y, T* highest_of, T* sum_of) {
  using Own = OwnRows<kEachRow>;
  GPU_DYNAMIC_SHARED(T, shared);
  const int64_t widest = p.width > p.value_width ? p.width : p.value_width;
  T* queries = shared;
  T* slice = queries + Own::kCount * tile_stride(p.width);
  T* probabilities = slice + kSlice * tile_stride(widest);
  const Own own(p.queries);
  load_tile<Own::kCount>(queries, p.q, own.head, own.first, p.queries, p.width);
  T sums[kEachRow][kEach] = {}, highest[kEachRow], sum[kEachRow] = {};
  for (T& value : highest) value = -INFINITY;
  const int64_t end = ranges.end(own.block, p.keys);
  for (int64_t begin = ranges.begin(own.block); begin < end; begin += kSlice) {
    __syncthreads();
    load_tile<kSlice>(slice, p.k, own.head, begin, p.keys, p.width);
    __syncthreads();
    T scores[kEachRow][kScores];
    dot_products(queries, slice, p.width, scores);
#pragma unroll
    for (int r = 0; r < kEachRow; ++r) {
      const int64_t query = own.row(r);
      T most = highest[r];
      for (int j = 0; j < kScores; ++j) {
        const int64_t key = begin + own_lane(j);
        if (key >= p.keys || query >= p.queries) continue;
        scores[r][j] = p.mask.apply(scores[r][j] * p.scale, own.head, query, key);
        most = higher(most, scores[r][j]);
      }
      most = merge_group(most, higher<T>);
      // So far the row is hidden entirely: it has neither sums to scale nor probabilities.
      const bool hidden = most == -INFINITY;
      const T factor = hidden || highest[r] == most ? T{1} : math::exp(highest[r] - most);
      T added = 0;
      for (int j = 0; j < kScores; ++j) {
        const bool counts = begin + own_lane(j) < p.keys && query < p.queries && !hidden;
        const T probability = counts ? math::exp(scores[r][j] - most) : T{0};
        probabilities[own_row(r) * (kSlice + 1) + own_lane(j)] = probability;
        added += probability;
      }
      sum[r] = sum[r] * factor + merge_group(added, Sum());
      highest[r] = most;
      for (T& value : sums[r]) value *= factor;
    }
    __syncthreads();
    load_tile<kSlice>(slice, p.v, own.head, begin, p.keys, p.value_width);
    __syncthreads();
    add_products(probabilities, slice, p.value_width, sums);
  }
#pragma unroll
  for (int r = 0; r < kEachRow; ++r) {
    const int64_t query = own.row(r);
    if (query >= p.queries) continue;
    if (highest[r] <= p.hidden) sum[r] = NAN;  // like exp(-inf - -inf)
    if (own_lane(0) == 0) {
      highest_of[own.head * p.queries + query] = highest[r];
      sum_of[own.head * p.queries + query] = sum[r];
    }
    const bool is_zero = p.nan_safe && sum[r] != sum[r];
    if (is_zero) {
      for (T& value : sums[r]) value = 0;
    }
    store_row(y, own.head, query, p.value_width, sums[r], is_zero ? T{1} : T{1} / sum[r]);
  }
}

// The probability of a score in the backward pass; 0 if it is NaN and the attention guards against NaN.
template <typename T>
struct Probability {
  T value = 0;
  bool is_guarded = false;

  __device__ Probability(const Problem<T>& p, T product, int64_t head, int64_t query, int64_t key, T highest, T sum) {
    value = math::exp(p.mask.apply(product * p.scale, head, query, key) - highest) / sum;
    is_guarded = p.nan_safe && value != value;
    if (is_guarded) value = 0;
  }
  // Returns scale dS, given dP.
  __device__ T score_gradient(const Problem<T>& p, T dp, T mean, int64_t head, int64_t query, int64_t key) const {
    if (p.mask.selects() && p.mask.hides(head, query, key)) return 0;
    return value * ((is_guarded ? T{0} : dp) - mean) * p.scale;
  }
};

template <typename T>
struct Backward {
  Matrices<T> dy, y;
  const T *highest, *sum;
  T* mean;  // Σ dy y of each query
};

template <typename T, int kEachRow, int kEach>
__global__ void attend_gradient_by_queries(Problem<T> p, Ranges ranges, Backward<T> b, Matrices<T> dq) {
  using Own = OwnRows<kEachRow>;
  GPU_DYNAMIC_SHARED(T, shared);
  const int64_t widest = p.width > p.value_width ? p.width : p.value_width;
  T* queries = shared;
  T* gradients = queries + Own::kCount * tile_stride(p.width);
  T* slice = gradients + Own::kCount * tile_stride(p.value_width);
  T* factors = slice + kSlice * tile_stride(widest);
  const Own own(p.queries);
  load_tile<Own::kCount>(queries, p.q, own.head, own.first, p.queries, p.width);
  load_tile<Own::kCount>(gradients, b.dy, own.head, own.first, p.queries, p.value_width);
  __syncthreads();
  T mean[kEachRow] = {}, highest[kEachRow], sum[kEachRow], sums[kEachRow][kEach] = {};
#pragma unroll
  for (int r = 0; r < kEachRow; ++r) {
    const int64_t query = own.row(r), at = own.head * p.queries + query;
    const bool is_query = query < p.queries;
    for (int64_t column = own_lane(0); is_query && column < p.value_width; column += kLanes) {
      mean[r] += gradients[own_row(r) * tile_stride(p.value_width) + column] * b.y.load(own.head, query, column);
    }
    mean[r] = merge_group(mean[r], Sum());
    if (is_query && own_lane(0) == 0) b.mean[at] = mean[r];
    highest[r] = is_query ? b.highest[at] : T{0};
    sum[r] = is_query ? b.sum[at] : T{1};
  }
  const int64_t end = ranges.end(own.block, p.keys);
  for (int64_t begin = ranges.begin(own.block); begin < end; begin += kSlice) {
    T products[kEachRow][kScores], dp[kEachRow][kScores];
    __syncthreads();
    load_tile<kSlice>(slice, p.v, own.head, begin, p.keys, p.value_width);
    __syncthreads();
    dot_products(gradients, slice, p.value_width, dp);
    __syncthreads();
    load_tile<kSlice>(slice, p.k, own.head, begin, p.keys, p.width);
    __syncthreads();
    dot_products(queries, slice, p.width, products);
#pragma unroll
    for (int r = 0; r < kEachRow; ++r) {
      const int64_t query = own.row(r);
      for (int j = 0; j < kScores; ++j) {
        const int64_t key = begin + own_lane(j);
        T factor = 0;
        if (query < p.queries && key < p.keys) {
          const Probability<T> probability(p, products[r][j], own.head, query, key, highest[r], sum[r]);
          factor = probability.score_gradient(p, dp[r][j], mean[r], own.head, query, key);
        }
        factors[own_row(r) * (kSlice + 1) + own_lane(j)] = factor;
      }
    }
    __syncthreads();
    add_products(factors, slice, p.width, sums);
  }
#pragma unroll
  for (int r = 0; r < kEachRow; ++r) {
    if (own.row(r) < p.queries) store_row(dq, own.head, own.row(r), p.width, sums[r], T{1});
  }
}

// Runs after attend_gradient_by_queries, which writes the means.
template <typename T, int kEachRow, int kEach>
__global__ void attend_gradient_by_keys(Problem<T> p, Ranges ranges, Backward<T> b, Matrices<T> dk, Matrices<T> dv) {
  using Own = OwnRows<kEachRow>;
  GPU_DYNAMIC_SHARED(T, shared);
  const int64_t widest = p.width > p.value_width ? p.width : p.value_width;
  T* keys = shared;
  T* values = keys + Own::kCount * tile_stride(p.width);
  T* slice = values + Own::kCount * tile_stride(p.value_width);
  T* factors = slice + kSlice * tile_stride(widest);
  const Own own(p.keys);
  load_tile<Own::kCount>(keys, p.k, own.head, own.first, p.keys, p.width);
  load_tile<Own::kCount>(values, p.v, own.head, own.first, p.keys, p.value_width);
  T key_sums[kEachRow][kEach] = {}, value_sums[kEachRow][kEach] = {};
  const int64_t end = ranges.end(own.block, p.queries);
  for (int64_t begin = ranges.begin(own.block); begin < end; begin += kSlice) {
    T products[kEachRow][kScores], dp[kEachRow][kScores];  // later the gradients of the scores
    __syncthreads();
    load_tile<kSlice>(slice, p.q, own.head, begin, p.queries, p.width);
    __syncthreads();
    dot_products(keys, slice, p.width, products);
    __syncthreads();
    load_tile<kSlice>(slice, b.dy, own.head, begin, p.queries, p.value_width);
    __syncthreads();
    dot_products(values, slice, p.value_width, dp);
#pragma unroll
    for (int r = 0; r < kEachRow; ++r) {
      const int64_t key = own.row(r);
      for (int j = 0; j < kScores; ++j) {
        const int64_t query = begin + own_lane(j), at = own.head * p.queries + query;
        T value = 0, gradient = 0;
        if (query < p.queries && key < p.keys) {
          const Probability<T> probability(p, products[r][j], own.head, query, key, b.highest[at], b.sum[at]);
          value = probability.value;
          gradient = probability.score_gradient(p, dp[r][j], b.mean[at], own.head, query, key);
        }
        dp[r][j] = gradient;
        factors[own_row(r) * (kSlice + 1) + own_lane(j)] = value;
      }
    }
    __syncthreads();
    add_products(factors, slice, p.value_width, value_sums);
    __syncthreads();
    load_tile<kSlice>(slice, p.q, own.head, begin, p.queries, p.width);
#pragma unroll
    for (int r = 0; r < kEachRow; ++r) {
      for (int j = 0; j < kScores; ++j) factors[own_row(r) * (kSlice + 1) + own_lane(j)] = dp[r][j];
    }
    __syncthreads();
    add_products(factors, slice, p.width, key_sums);
  }
#pragma unroll
  for (int r = 0; r < kEachRow; ++r) {
    if (own.row(r) >= p.keys) continue;
    store_row(dk, own.head, own.row(r), p.width, key_sums[r], T{1});
    store_row(dv, own.head, own.row(r), p.value_width, value_sums[r], T{1});
  }
}

// ---- Preparing

// A tensor of a node, with its description in the device's memory.
struct PreparedMatrices {
  PreparedMatrices(const NodeSpec& spec, AttentionTensor tensor) : place(place_of(spec, tensor)) {
    const Heads heads = heads_of(spec, tensor);
    starts = std::make_shared<const DeviceTable>(heads.starts.data(), heads.starts.size() * sizeof(int64_t));
    stride = heads.row_stride;
    stored = place.of(spec.node())->dtype();
  }

  template <typename T>
  Matrices<T> on(const Launch& launch) const {
    return {place.in(launch), starts->data<int64_t>(), stride, stored};
  }

  NodePlace place;
  SharedTable starts;
  int64_t stride;
  DType stored;
};

int64_t num_blocks(int64_t rows, int each_row) { return (rows + kGroups * each_row - 1) / (kGroups * each_row); }

struct PreparedAttention {
  explicit PreparedAttention(const NodeSpec& spec)
      : shape(attention_operands(spec)), q(spec, kQ), k(spec, kK), v(spec, kV), mask(mask_of(spec, shape)) {
    masks_at = mask_input(spec);
    if (mask.kind != MaskKind::kNone)
      planes = std::make_shared<const DeviceTable>(mask.plane.data(), mask.plane.size() * sizeof(int64_t));
  }

  template <typename T>
  Problem<T> on(const Launch& launch) const {
    Problem<T> p{q.on<T>(launch),
                 k.on<T>(launch),
                 v.on<T>(launch),
                 shape.heads(),
                 shape.q.rows,
                 shape.k.rows,
                 shape.q.width,
                 shape.v.width,
                 static_cast<T>(shape.scale),
                 shape.nan_safe,
                 shape.nan_safe ? static_cast<T>(shape.hidden) : -std::numeric_limits<T>::infinity(),
                 {}};
    if (planes) {
      p.mask = {mask.kind,    launch.inputs[masks_at],  planes->data<int64_t>(), mask.rows,
                mask.columns, static_cast<T>(mask.fill)};
    }
    return p;
  }
  int64_t widest() const { return std::max(shape.q.width, shape.v.width); }
  unsigned blocks(int64_t rows, int each_row) const {
    return static_cast<unsigned>(shape.heads() * num_blocks(rows, each_row));
  }

  AttentionOperands shape;
  PreparedMatrices q, k, v;
  MaskLayout mask;
  int masks_at;
  SharedTable planes;
};

// Returns the bytes of dynamic shared memory that a block needs.
size_t shared_bytes(const AttentionOperands& a, bool backward, int each_row, size_t element) {
  const int64_t widest = std::max(a.q.width, a.v.width);
  const int64_t of_row = tile_stride(a.q.width) + (backward ? tile_stride(a.v.width) : 0) + kSlice + 1;
  return static_cast<size_t>(kGroups * each_row * of_row + kSlice * tile_stride(widest)) * element;
}

// Calls f(std::integral_constant) with the number of columns that a thread sums.
template <typename F>
auto dispatch_columns(int64_t width, const F& f) {
  const int64_t each = (width + kLanes - 1) / kLanes;
  if (each <= 4) return f(std::integral_constant<int, 4>());
  if (each <= 8) return f(std::integral_constant<int, 8>());
  if (each <= 16) return f(std::integral_constant<int, 16>());
  return f(std::integral_constant<int, 32>());
}

// kEachRow, the rows per group: as many as fit with their sums in registers and their tiles in shared memory.
template <typename T>
constexpr int rows_of_group(int each, bool backward) {
  const int most = each <= 8 ? 4 : each <= 16 ? 2 : 1, shares = (backward ? 2 : 1) * (sizeof(T) > 4 ? 2 : 1);
  return most > shares ? most / shares : 1;
}

template <typename T>
int rows_of_group(const AttentionOperands& a, bool backward) {
  return dispatch_columns(std::max(a.q.width, a.v.width), [&]<int kEach>(std::integral_constant<int, kEach>) {
    return rows_of_group<T>(kEach, backward);
  });
}

// Copies the ranges of blocks of kGroups each_row rows to the device; null if there are none.
SharedTable on_device(const std::vector<int64_t>& ranges) {
  if (ranges.empty()) return nullptr;
  return std::make_shared<const DeviceTable>(ranges.data(), ranges.size() * sizeof(int64_t));
}

Ranges ranges_in(const SharedTable& ranges) { return {ranges ? ranges->data<int64_t>() : nullptr}; }

template <typename T>
bool fits(const NodeSpec& spec, bool backward) {
  const AttentionOperands a = attention_operands(spec);
  const int each_row = rows_of_group<T>(a, backward);
  const int64_t blocks = a.heads() * num_blocks(std::max(a.q.rows, a.k.rows), each_row);
  return shared_bytes(a, backward, each_row, sizeof(T)) <= kSharedBytes && blocks <= 0x7fffffff;
}

// Returns `computed` and the 16-bit type of q, k, v or the first result, if one has such a type.
AttentionTypes types_of(const NodeSpec& spec, DType computed) {
  DType stored = spec.out_type();
  for (const AttentionTensor tensor : {kQ, kK, kV}) {
    const Value* const value = place_of(spec, tensor).of(spec.node());
    if (!is_half(stored) && value) stored = value->dtype();
  }
  return {computed, is_half(stored) && computed == DType::kFloat ? stored : computed};
}

template <typename T>
Prepared prepare_attention(const NodeSpec& spec) {
  const PreparedAttention a(spec);
  const PreparedMatrices y(spec, kY);
  const int each_row = rows_of_group<T>(a.shape, false);
  const size_t shared = shared_bytes(a.shape, false, each_row, sizeof(T));
  const VisibleKeys visible = visible_keys(a.mask, contents_of_mask(spec), a.shape);
  const SharedTable keys = on_device(keys_of_blocks(visible, kGroups * each_row));
  return {[=](const Launch& launch) {
    dispatch_columns(a.widest(), [&]<int kEach>(std::integral_constant<int, kEach>) {
      constexpr int kRows = rows_of_group<T>(kEach, false);
      enqueue(launch, "BlockAttention", attend<T, kRows, kEach>, a.blocks(a.shape.q.rows, kRows), kBlock, shared,
              a.on<T>(launch), ranges_in(keys), y.on<T>(launch), launch.out<T>(1), launch.out<T>(2));
    });
  }};
}

template <typename T>
Prepared prepare_attention_gradient(const NodeSpec& spec) {
  const PreparedAttention a(spec);
  const PreparedMatrices dy(spec, kDy), y(spec, kY), dq(spec, kDq), dk(spec, kDk), dv(spec, kDv);
  const int each_row = rows_of_group<T>(a.shape, true);
  const size_t shared = shared_bytes(a.shape, true, each_row, sizeof(T));
  const VisibleKeys visible = visible_keys(a.mask, contents_of_mask(spec), a.shape);
  const SharedTable keys = on_device(keys_of_blocks(visible, kGroups * each_row)),
                    queries = on_device(queries_of_blocks(visible, a.shape.k.rows, kGroups * each_row));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(a.shape.heads() * a.shape.q.rows) * sizeof(T);
  prepared.run = [=](const Launch& launch) {
    const Problem<T> p = a.on<T>(launch);
    const Backward<T> b{dy.on<T>(launch), y.on<T>(launch), launch.in<T>(5), launch.in<T>(6), launch.scratch<T>()};
    dispatch_columns(a.widest(), [&]<int kEach>(std::integral_constant<int, kEach>) {
      constexpr int kRows = rows_of_group<T>(kEach, true);
      enqueue(launch, "BlockAttentionGrad", attend_gradient_by_queries<T, kRows, kEach>,
              a.blocks(a.shape.q.rows, kRows), kBlock, shared, p, ranges_in(keys), b, dq.on<T>(launch));
      enqueue(launch, "BlockAttentionGrad", attend_gradient_by_keys<T, kRows, kEach>, a.blocks(a.shape.k.rows, kRows),
              kBlock, shared, p, ranges_in(queries), b, dk.on<T>(launch), dv.on<T>(launch));
    });
  };
  return prepared;
}

// `statistic` is the type of the highest scores and of the sums; the node computes in it.
bool supports(const NodeSpec& spec, bool backward, DType statistic) {
  return is_float_or_double(statistic) && supports_attention(spec, types_of(spec, statistic)) &&
         dispatch_float(statistic, [&]<typename T>(T) { return fits<T>(spec, backward); });
}

}  // namespace

std::vector<Kernel> attention_kernels() {
  return {
      {"BlockAttention", [](const NodeSpec& spec) { return supports(spec, false, spec.out_type(1)); },
       [](const NodeSpec& spec) {
         return dispatch_float(spec.out_type(1), [&]<typename T>(T) { return prepare_attention<T>(spec); });
       },
       kDomain},
      {"BlockAttentionGrad", [](const NodeSpec& spec) { return supports(spec, true, spec.in_type(5)); },
       [](const NodeSpec& spec) {
         return dispatch_float(spec.in_type(5), [&]<typename T>(T) { return prepare_attention_gradient<T>(spec); });
       },
       kDomain},
  };
}

}  // namespace onnx_train::cuda
