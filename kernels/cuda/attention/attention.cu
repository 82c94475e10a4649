// Attention that never stores all of its scores, forward and backward: BlockAttention and BlockAttentionGrad
// (kernels/functions/attention.cc has their formulas).
//
// A block of threads holds kRows rows of one matrix, queries or keys, and walks over the rows of the other in slices of
// kSlice, which it loads into shared memory. kLanes threads share a row: each computes kSlice / kLanes scores of a
// slice, and every kLanes-th column of what the row sums up. The forward pass keeps the highest score and the sum of
// each row as it goes, and scales what it has when a higher score comes (Milakov & Gimelshein 2018; Dao et al. 2022).
// The backward pass computes the scores again, once by queries (dq) and once by keys (dk, dv): every element of a
// result is written by one thread, which adds in a fixed order.
//
// Operands and results may be stored in 16 bits; everything is computed in T, float or double. In which type each is
// stored is known when it runs: few elements are loaded for each that is computed.
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

constexpr int kRows = 16, kSlice = 32, kLanes = 8;
constexpr int kBlock = kRows * kLanes;    // threads
constexpr int kScores = kSlice / kLanes;  // of a thread and a slice
constexpr size_t kSharedBytes = size_t{48} << 10;

// The matrices of an operand or result: where each begins, and the elements between rows.
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
  const int64_t* planes = nullptr;  // of each head
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

// `Rows` rows of `width` elements, from shared memory; an odd number of elements between rows avoids bank conflicts.
__host__ __device__ inline int64_t tile_stride(int64_t width) { return width | 1; }

// Copies rows first.. first + kCount of a matrix into a tile; rows after `end` become 0.
template <int kCount, typename T>
__device__ void load_tile(T* tile, const Matrices<T>& from, int64_t head, int64_t first, int64_t end, int64_t width) {
  for (int64_t i = threadIdx.x; i < kCount * width; i += kBlock) {
    const int64_t row = i / width, column = i % width;
    tile[row * tile_stride(width) + column] = first + row < end ? from.load(head, first + row, column) : T{0};
  }
}

__device__ int64_t own_row() { return threadIdx.x / kLanes; }
__device__ int64_t lane() { return threadIdx.x % kLanes; }

// results[j] = own row · row lane + j kLanes of the slice
template <typename T>
__device__ void dot_products(const T* rows, const T* slice, int64_t width, T (&results)[kScores]) {
  const T* own = rows + own_row() * tile_stride(width);
  for (T& result : results) result = 0;
  for (int64_t d = 0; d < width; ++d) {
#pragma unroll
    for (int j = 0; j < kScores; ++j) results[j] += own[d] * slice[(lane() + j * kLanes) * tile_stride(width) + d];
  }
}

// sums[j] += Σ factors[own row][i] slice[i][lane + j kLanes], over the rows i of the slice
template <int kEach, typename T>
__device__ void add_products(const T* factors, const T* slice, int64_t width, T (&sums)[kEach]) {
  const T* own = factors + own_row() * (kSlice + 1);
  for (int i = 0; i < kSlice; ++i) {
    const T* row = slice + i * tile_stride(width);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t column = lane() + j * kLanes;
      if (column < width) sums[j] += own[i] * row[column];
    }
  }
}

// Combines the values of the threads of a row, for each of them.
template <typename T, typename F>
__device__ T merge_row(T value, const F& merge) {
  for (int bits = 1; bits < kLanes; bits *= 2) {
    value = merge(value, exchange_words(value, [=](unsigned w) { return __shfl_xor_sync(gpu::kAllLanes, w, bits); }));
  }
  return value;
}

// The higher one; NaN if one is NaN.
template <typename T>
__device__ T higher(T a, T b) {
  return a != a ? a : b > a || b != b ? b : a;
}

template <int kEach, typename T>
__device__ void store_row(const Matrices<T>& to, int64_t head, int64_t row, int64_t width, const T (&values)[kEach],
                          T factor) {
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t column = lane() + j * kLanes;
    if (column < width) to.store(head, row, column, values[j] * factor);
  }
}

template <typename T, int kEach>
__global__ void attend(Problem<T> p, Matrices<T> y, T* highest_of, T* sum_of) {
  GPU_DYNAMIC_SHARED(T, shared);
  const int64_t widest = p.width > p.value_width ? p.width : p.value_width;
  T* queries = shared;
  T* slice = queries + kRows * tile_stride(p.width);
  T* probabilities = slice + kSlice * tile_stride(widest);
  const int64_t blocks = (p.queries + kRows - 1) / kRows, head = blockIdx.x / blocks;
  const int64_t first = (blockIdx.x - head * blocks) * kRows, query = first + own_row();
  load_tile<kRows>(queries, p.q, head, first, p.queries, p.width);
  T sums[kEach] = {};
  T highest = -INFINITY, sum = 0;
  for (int64_t begin = 0; begin < p.keys; begin += kSlice) {
    __syncthreads();
    load_tile<kSlice>(slice, p.k, head, begin, p.keys, p.width);
    __syncthreads();
    T scores[kScores];
    dot_products(queries, slice, p.width, scores);
    T most = highest;
    for (int j = 0; j < kScores; ++j) {
      const int64_t key = begin + lane() + j * kLanes;
      if (key >= p.keys || query >= p.queries) continue;
      scores[j] = p.mask.apply(scores[j] * p.scale, head, query, key);
      most = higher(most, scores[j]);
    }
    most = merge_row(most, higher<T>);
    // A row that is hidden so far has no sums that could be scaled, nor probabilities.
    const bool hidden = most == -INFINITY;
    const T factor = hidden || highest == most ? T{1} : math::exp(highest - most);
    T added = 0;
    for (int j = 0; j < kScores; ++j) {
      const bool counts = begin + lane() + j * kLanes < p.keys && query < p.queries && !hidden;
      const T probability = counts ? math::exp(scores[j] - most) : T{0};
      probabilities[own_row() * (kSlice + 1) + lane() + j * kLanes] = probability;
      added += probability;
    }
    sum = sum * factor + merge_row(added, [](T a, T b) { return a + b; });
    highest = most;
    for (T& value : sums) value *= factor;
    __syncthreads();
    load_tile<kSlice>(slice, p.v, head, begin, p.keys, p.value_width);
    __syncthreads();
    add_products(probabilities, slice, p.value_width, sums);
  }
  if (query >= p.queries) return;
  if (highest <= p.hidden) sum = NAN;  // as exp(-inf - -inf) is
  if (lane() == 0) {
    highest_of[head * p.queries + query] = highest;
    sum_of[head * p.queries + query] = sum;
  }
  const bool is_zero = p.nan_safe && sum != sum;
  if (is_zero) {
    for (T& value : sums) value = 0;
  }
  store_row(y, head, query, p.value_width, sums, is_zero ? T{1} : T{1} / sum);
}

// What the backward pass knows of a score: its probability, 0 if it is NaN and the attention guards against that.
template <typename T>
struct Probability {
  T value = 0;
  bool is_guarded = false;

  __device__ Probability(const Problem<T>& p, T product, int64_t head, int64_t query, int64_t key, T highest, T sum) {
    value = math::exp(p.mask.apply(product * p.scale, head, query, key) - highest) / sum;
    is_guarded = p.nan_safe && value != value;
    if (is_guarded) value = 0;
  }
  // dS of dP, times the scale
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

template <typename T, int kEach>
__global__ void attend_gradient_by_queries(Problem<T> p, Backward<T> b, Matrices<T> dq) {
  GPU_DYNAMIC_SHARED(T, shared);
  const int64_t widest = p.width > p.value_width ? p.width : p.value_width;
  T* queries = shared;
  T* gradients = queries + kRows * tile_stride(p.width);
  T* slice = gradients + kRows * tile_stride(p.value_width);
  T* factors = slice + kSlice * tile_stride(widest);
  const int64_t blocks = (p.queries + kRows - 1) / kRows, head = blockIdx.x / blocks;
  const int64_t first = (blockIdx.x - head * blocks) * kRows, query = first + own_row();
  const bool is_query = query < p.queries;
  load_tile<kRows>(queries, p.q, head, first, p.queries, p.width);
  load_tile<kRows>(gradients, b.dy, head, first, p.queries, p.value_width);
  __syncthreads();
  T mean = 0;
  for (int64_t column = lane(); is_query && column < p.value_width; column += kLanes) {
    mean += gradients[own_row() * tile_stride(p.value_width) + column] * b.y.load(head, query, column);
  }
  mean = merge_row(mean, [](T x, T y) { return x + y; });
  if (is_query && lane() == 0) b.mean[head * p.queries + query] = mean;
  const T highest = is_query ? b.highest[head * p.queries + query] : T{0};
  const T sum = is_query ? b.sum[head * p.queries + query] : T{1};
  T sums[kEach] = {};
  for (int64_t begin = 0; begin < p.keys; begin += kSlice) {
    T products[kScores], dp[kScores];
    __syncthreads();
    load_tile<kSlice>(slice, p.v, head, begin, p.keys, p.value_width);
    __syncthreads();
    dot_products(gradients, slice, p.value_width, dp);
    __syncthreads();
    load_tile<kSlice>(slice, p.k, head, begin, p.keys, p.width);
    __syncthreads();
    dot_products(queries, slice, p.width, products);
    for (int j = 0; j < kScores; ++j) {
      const int64_t key = begin + lane() + j * kLanes;
      T factor = 0;
      if (is_query && key < p.keys) {
        const Probability<T> probability(p, products[j], head, query, key, highest, sum);
        factor = probability.score_gradient(p, dp[j], mean, head, query, key);
      }
      factors[own_row() * (kSlice + 1) + lane() + j * kLanes] = factor;
    }
    __syncthreads();
    add_products(factors, slice, p.width, sums);
  }
  if (is_query) store_row(dq, head, query, p.width, sums, T{1});
}

// After attend_gradient_by_queries, which writes the means.
template <typename T, int kEach>
__global__ void attend_gradient_by_keys(Problem<T> p, Backward<T> b, Matrices<T> dk, Matrices<T> dv) {
  GPU_DYNAMIC_SHARED(T, shared);
  const int64_t widest = p.width > p.value_width ? p.width : p.value_width;
  T* keys = shared;
  T* values = keys + kRows * tile_stride(p.width);
  T* slice = values + kRows * tile_stride(p.value_width);
  T* factors = slice + kSlice * tile_stride(widest);
  const int64_t blocks = (p.keys + kRows - 1) / kRows, head = blockIdx.x / blocks;
  const int64_t first = (blockIdx.x - head * blocks) * kRows, key = first + own_row();
  load_tile<kRows>(keys, p.k, head, first, p.keys, p.width);
  load_tile<kRows>(values, p.v, head, first, p.keys, p.value_width);
  T key_sums[kEach] = {}, value_sums[kEach] = {};
  for (int64_t begin = 0; begin < p.queries; begin += kSlice) {
    T products[kScores], dp[kScores], score_gradients[kScores];
    __syncthreads();
    load_tile<kSlice>(slice, p.q, head, begin, p.queries, p.width);
    __syncthreads();
    dot_products(keys, slice, p.width, products);
    __syncthreads();
    load_tile<kSlice>(slice, b.dy, head, begin, p.queries, p.value_width);
    __syncthreads();
    dot_products(values, slice, p.value_width, dp);
    for (int j = 0; j < kScores; ++j) {
      const int64_t query = begin + lane() + j * kLanes, at = head * p.queries + query;
      T value = 0;
      score_gradients[j] = 0;
      if (query < p.queries && key < p.keys) {
        const Probability<T> probability(p, products[j], head, query, key, b.highest[at], b.sum[at]);
        value = probability.value;
        score_gradients[j] = probability.score_gradient(p, dp[j], b.mean[at], head, query, key);
      }
      factors[own_row() * (kSlice + 1) + lane() + j * kLanes] = value;
    }
    __syncthreads();
    add_products(factors, slice, p.value_width, value_sums);
    __syncthreads();
    load_tile<kSlice>(slice, p.q, head, begin, p.queries, p.width);
    for (int j = 0; j < kScores; ++j) factors[own_row() * (kSlice + 1) + lane() + j * kLanes] = score_gradients[j];
    __syncthreads();
    add_products(factors, slice, p.width, key_sums);
  }
  if (key >= p.keys) return;
  store_row(dk, head, key, p.width, key_sums, T{1});
  store_row(dv, head, key, p.value_width, value_sums, T{1});
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
  unsigned blocks(int64_t rows) const { return static_cast<unsigned>(shape.heads() * ((rows + kRows - 1) / kRows)); }

  AttentionOperands shape;
  PreparedMatrices q, k, v;
  MaskLayout mask;
  int masks_at;
  SharedTable planes;
};

// Of shared memory, for tiles of kRows rows and one of kSlice, and a factor for each pair of rows.
size_t shared_bytes(const AttentionOperands& a, bool backward, size_t element) {
  const int64_t widest = std::max(a.q.width, a.v.width);
  const int64_t rows = kRows * (tile_stride(a.q.width) + (backward ? tile_stride(a.v.width) : 0));
  return static_cast<size_t>(rows + kSlice * tile_stride(widest) + kRows * (kSlice + 1)) * element;
}

// f(std::integral_constant<int, the columns that a thread sums up>)
template <typename F>
void dispatch_columns(int64_t width, const F& f) {
  const int64_t each = (width + kLanes - 1) / kLanes;
  if (each <= 4) return f(std::integral_constant<int, 4>());
  if (each <= 8) return f(std::integral_constant<int, 8>());
  if (each <= 16) return f(std::integral_constant<int, 16>());
  f(std::integral_constant<int, 32>());
}

bool fits(const NodeSpec& spec, bool backward, DType computed) {
  const AttentionOperands a = attention_operands(spec);
  const int64_t blocks = a.heads() * ((std::max(a.q.rows, a.k.rows) + kRows - 1) / kRows);
  return shared_bytes(a, backward, size_of(computed)) <= kSharedBytes && blocks <= 0x7fffffff;
}

// With the 16-bit type in which one of q, k, v or the first result is stored, if any.
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
  const size_t shared = shared_bytes(a.shape, false, sizeof(T));
  return {[=](const Launch& launch) {
    dispatch_columns(a.widest(), [&]<int kEach>(std::integral_constant<int, kEach>) {
      enqueue(launch, "BlockAttention", attend<T, kEach>, a.blocks(a.shape.q.rows), kBlock, shared, a.on<T>(launch),
              y.on<T>(launch), launch.out<T>(1), launch.out<T>(2));
    });
  }};
}

template <typename T>
Prepared prepare_attention_gradient(const NodeSpec& spec) {
  const PreparedAttention a(spec);
  const PreparedMatrices dy(spec, kDy), y(spec, kY), dq(spec, kDq), dk(spec, kDk), dv(spec, kDv);
  const size_t shared = shared_bytes(a.shape, true, sizeof(T));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(a.shape.heads() * a.shape.q.rows) * sizeof(T);
  prepared.run = [=](const Launch& launch) {
    const Problem<T> p = a.on<T>(launch);
    const Backward<T> b{dy.on<T>(launch), y.on<T>(launch), launch.in<T>(5), launch.in<T>(6), launch.scratch<T>()};
    dispatch_columns(a.widest(), [&]<int kEach>(std::integral_constant<int, kEach>) {
      enqueue(launch, "BlockAttentionGrad", attend_gradient_by_queries<T, kEach>, a.blocks(a.shape.q.rows), kBlock,
              shared, p, b, dq.on<T>(launch));
      enqueue(launch, "BlockAttentionGrad", attend_gradient_by_keys<T, kEach>, a.blocks(a.shape.k.rows), kBlock, shared,
              p, b, dk.on<T>(launch), dv.on<T>(launch));
    });
  };
  return prepared;
}

// `statistic` is the type of the highest scores and of the sums, in which the node computes.
bool supports(const NodeSpec& spec, bool backward, DType statistic) {
  return is_float_or_double(statistic) && supports_attention(spec, types_of(spec, statistic)) &&
         fits(spec, backward, statistic);
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
