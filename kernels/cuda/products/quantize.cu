// Quantize: the operands of 8-bit products (scaled_products.cc), in one pass over x. Tensor cores read such operands
// along the sum, so a tensor that two products sum over different axes is stored twice: as it is, and transposed. The
// same pass finds the largest magnitude, which decides later scales, and the sums of the columns, a bias's gradient.
//
// A block has a tile of the matrix, and a thread 4 x 16 elements of it: 16 bytes of a stored row. Words of 4 rows go
// through shared memory to the threads that write 16 bytes of a stored column. Blocks leave maxima and partial sums,
// which a second kernel combines in a fixed order.
#include <bit>
#include <limits>

#include "kernels/cuda/products/float8.h"
#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/math/activations.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/float8.h"
#include "onnx_passes/ir/name_list.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cuda {
namespace {

constexpr int kRows = 4, kColumns = static_cast<int>(kVectorBytes);  // of a thread
constexpr int kRowThreads = 32, kColumnThreads = 4;                  // of a block
constexpr int kTileThreads = kRowThreads * kColumnThreads;
constexpr int kTileRows = kRowThreads * kRows, kTileColumns = kColumnThreads * kColumns;
constexpr int kOfWord = 4;  // elements
static_assert(kRows == kOfWord);

// Shared memory of a tile: columns of words of 4 rows. Threads that write or read at the same time use other banks.
constexpr int kColumnWords = kRowThreads + 1, kBank = 8;
constexpr int kTileWords = kTileColumns * kColumnWords + kBank;
__host__ __device__ constexpr int first_word(int column) {
  return column * kColumnWords + column / (kTileColumns / 2) * kBank;
}

// What is quantized, from x and another operand: x itself, f(x), or f'(operand) x. Results are rounded like x.
struct Same {
  static constexpr bool kHasOperand = false;
  __device__ float operator()(float x, float) const { return x; }
};
template <typename F>
struct Activated {
  static constexpr bool kHasOperand = false;
  __device__ float operator()(float x, float) const { return F()(x); }
};
template <typename F>
struct ActivatedGradient {
  static constexpr bool kHasOperand = true;
  __device__ float operator()(float x, float operand) const { return F()(x, operand); }
};

template <typename S>
struct Matrix {
  int64_t rows, columns, column_tiles;
  const S *x, *operand;
  const float* scale;
  uint8_t *by_rows, *by_columns;  // null: not stored
  uint32_t* maxima;               // of tiles, as the bits of floats, in whose order a NaN is the largest; or null
  float* sums;                    // [row tiles, columns], or null
  bool sums_stored;               // sums of the numbers that are stored, not of x
};

// The transposed 4 x 4 bytes.
__device__ void transpose_bytes(const uint32_t (&rows)[kOfWord], uint32_t (&columns)[kOfWord]) {
#pragma unroll
  for (int c = 0; c < kOfWord; ++c) {
    uint32_t word = 0;
#pragma unroll
    for (int r = 0; r < kOfWord; ++r) word |= (rows[r] >> 8 * c & 0xff) << 8 * r;
    columns[c] = word;
  }
}

// Sizes that are multiples of 16 are `kWhole`: a thread has all its elements or none.
template <typename Float8, typename Value, bool kWhole, typename S>
__global__ void quantize_tiles(Matrix<S> m) {
  GPU_SHARED(tile, uint32_t[kTileWords]);
  GPU_SHARED(partial, float[kRowThreads][kTileColumns]);
  const int column_thread = static_cast<int>(threadIdx.x) % kColumnThreads,
            row_thread = static_cast<int>(threadIdx.x) / kColumnThreads;
  const int64_t row_tile = blockIdx.x / m.column_tiles, first_row = row_tile * kTileRows,
                first_column = (blockIdx.x - row_tile * m.column_tiles) * kTileColumns;
  const int64_t row = first_row + row_thread * kRows, column = first_column + column_thread * kColumns;
  const float inverse = 1 / *m.scale;  // exact: a power of two

  // Elements outside of the matrix are zeros.
  const auto load = [&](const S* from, int r) {
    const S* const at = from + (row + r) * m.columns + column;
    StoredElements<kColumns, S> elements = {};
    if constexpr (kWhole) {
      if (row < m.rows && column < m.columns) elements = load_stored<kColumns>(at);
    } else {
      S singly[kColumns] = {};
      for (int c = 0; c < kColumns; ++c) {
        if (row + r < m.rows && column + c < m.columns) singly[c] = at[c];
      }
      memcpy(&elements, singly, sizeof elements);
    }
    return elements;
  };
  StoredElements<kColumns, S> x[kRows], operand[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = load(m.x, r);
  if constexpr (Value::kHasOperand) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) operand[r] = load(m.operand, r);
  }

  uint32_t largest = 0, words[kRows][kColumns / kOfWord];
  float sums[kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      float pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float other = Value::kHasOperand ? widened(operand[r][c + i]) : 0;
        pair[i] = widened(math::convert<S>(Value()(widened(x[r][c + i]), other)));
        const auto magnitude = std::bit_cast<uint32_t>(fabsf(pair[i]));
        largest = magnitude > largest ? magnitude : largest;
      }
      const uint32_t bytes = encoded_pair<Float8>(pair[0] * inverse, pair[1] * inverse);
      if (m.sums_stored) decode_pair<Float8>(bytes, pair);
      sums[c] += pair[0];
      sums[c + 1] += pair[1];
      uint32_t& word = words[r][c / kOfWord];
      word = c % kOfWord == 0 ? bytes : word | bytes << 16;
    }
  }

  if (m.by_rows) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint8_t* const to = m.by_rows + (row + r) * m.columns + column;
      if (kWhole) {
        if (row < m.rows && column < m.columns)
          *gpu::vector_at<Pack<uint32_t, kColumns / kOfWord>>(to) = {words[r][0], words[r][1], words[r][2],
                                                                     words[r][3]};
      } else {
        for (int c = 0; c < kColumns; ++c) {
          if (row + r < m.rows && column + c < m.columns)
            to[c] = static_cast<uint8_t>(words[r][c / kOfWord] >> c % kOfWord * 8);
        }
      }
    }
  }
  if (m.by_columns) {
#pragma unroll
    for (int w = 0; w < kColumns / kOfWord; ++w) {
      const uint32_t rows[kOfWord] = {words[0][w], words[1][w], words[2][w], words[3][w]};
      uint32_t columns[kOfWord];
      transpose_bytes(rows, columns);
#pragma unroll
      for (int c = 0; c < kOfWord; ++c)
        tile[first_word(column_thread * kColumns + w * kOfWord + c) + row_thread] = columns[c];
    }
  }
  if (m.sums) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) partial[row_thread][column_thread * kColumns + c] = sums[c];
  }
  if (m.maxima) {
    largest = merge_block<kTileThreads>(largest, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
    if (threadIdx.x == 0) m.maxima[blockIdx.x] = largest;
  }
  __syncthreads();

  if (m.by_columns) {
    constexpr int kPieces = kTileRows / kColumns;  // of 16 bytes, of a column
    for (int piece = static_cast<int>(threadIdx.x); piece < kTileColumns * kPieces; piece += kTileThreads) {
      const int c = piece / kPieces, r = piece % kPieces * kColumns;
      if (first_column + c >= m.columns || first_row + r >= m.rows) continue;
      const uint32_t* const from = tile + first_word(c) + r / kOfWord;
      uint8_t* const to = m.by_columns + (first_column + c) * m.rows + first_row + r;
      if (kWhole) {
        *gpu::vector_at<Pack<uint32_t, kColumns / kOfWord>>(to) = {from[0], from[1], from[2], from[3]};
      } else {
        for (int i = 0; i < kColumns && first_row + r + i < m.rows; ++i)
          to[i] = static_cast<uint8_t>(from[i / kOfWord] >> i % kOfWord * 8);
      }
    }
  }
  const int c = static_cast<int>(threadIdx.x);
  if (m.sums && c < kTileColumns && first_column + c < m.columns) {
    float sum = 0;
    for (int r = 0; r < kRowThreads; ++r) sum += partial[r][c];
    m.sums[row_tile * m.columns + first_column + c] = m.sums_stored ? sum * *m.scale : sum;
  }
}

// ---- The second kernel: the last block merges the maxima, the others each sum a warp's columns.

constexpr int kSumThreads = static_cast<int>(kThreads) / gpu::kWarpSize;  // of a column

__global__ void finish_quantization(int64_t tiles, const uint32_t* maxima, float* magnitude, int64_t row_tiles,
                                    int64_t columns, const float* partial, float* sums) {
  GPU_SHARED(pieces, float[kSumThreads][gpu::kWarpSize]);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize,
            part = static_cast<int>(threadIdx.x) / gpu::kWarpSize;
  if (blockIdx.x == gridDim.x - 1) {
    if (!magnitude) return;
    uint32_t largest = 0;
    for (int64_t i = threadIdx.x; i < tiles; i += kThreads) largest = maxima[i] > largest ? maxima[i] : largest;
    largest = merge_block<kThreads>(largest, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
    const float of_none = -std::numeric_limits<float>::infinity();  // as ReduceMax has it
    if (threadIdx.x == 0) *magnitude = tiles == 0 ? of_none : std::bit_cast<float>(largest);
    return;
  }
  const int64_t column = int64_t{blockIdx.x} * gpu::kWarpSize + lane;
  float sum = 0;
  for (int64_t tile = part; tile < row_tiles && column < columns; tile += kSumThreads)
    sum += partial[tile * columns + column];
  pieces[part][lane] = sum;
  __syncthreads();
  if (part != 0 || column >= columns) return;
  for (int other = 1; other < kSumThreads; ++other) sum += pieces[other][lane];
  sums[column] = sum;
}

// ---- Nodes

constexpr const char* kSumsOfStored = "stored";

// What a node stores: outputs by number, or -1.
struct Outputs {
  int by_rows, by_columns, magnitude, sums;
};

Outputs outputs_of(const NodeSpec& spec) {
  const std::vector<std::string> names = split_names(spec.node().attr("writes", ""));
  return {place_in(names, "rows"), place_in(names, "columns"), place_in(names, "magnitude"), place_in(names, "sums")};
}

// Calls f with a kernel for elements S, or null if there is none.
template <typename S, typename F>
void with_kernel(const NodeSpec& spec, bool is_whole, const F& f) {
  const std::string activation = spec.node().attr("activation", ""),
                    gradient = spec.node().attr("activation_gradient", "");
  const bool is_forward = spec.out_type() == DType::kFloat8E4M3FN;
  using math::Float8E4M3FN, math::Float8E5M2;
  if (activation.empty() && gradient.empty()) {
    if (is_forward)
      return f(is_whole ? quantize_tiles<Float8E4M3FN, Same, true, S> : quantize_tiles<Float8E4M3FN, Same, false, S>);
    return f(is_whole ? quantize_tiles<Float8E5M2, Same, true, S> : quantize_tiles<Float8E5M2, Same, false, S>);
  }
  void (*kernel)(Matrix<S>) = nullptr;
  if constexpr (std::is_same_v<S, BFloat16>) {
    const auto forward = [&]<typename A>(const char* name, A) {
      if (is_forward && is_whole && activation == name) kernel = quantize_tiles<Float8E4M3FN, Activated<A>, true, S>;
    };
    const auto backward = [&]<typename A>(const char* name, A) {
      if (!is_forward && is_whole && gradient == name)
        kernel = quantize_tiles<Float8E5M2, ActivatedGradient<A>, true, S>;
    };
    forward("Relu", math::Relu{});
    forward("Gelu", math::Gelu{});
    forward("GeluTanh", math::GeluTanh{});
    backward("Relu", math::ReluGrad{});
    backward("Gelu", math::GeluGrad{});
    backward("GeluTanh", math::GeluTanhGrad{});
  }
  f(kernel);
}

template <typename F>
void with_kernel_of_type(const NodeSpec& spec, bool is_whole, const F& f) {
  if (spec.in_type() == DType::kFloat) return with_kernel<float>(spec, is_whole, f);
  with_kernel<BFloat16>(spec, is_whole, f);
}

struct Sizes {
  int64_t rows, columns;
  bool is_whole() const { return rows % kColumns == 0 && columns % kColumns == 0; }
};
Sizes sizes_of(const NodeSpec& spec) {
  const Shape shape = spec.in_shape();
  const int64_t columns = shape.empty() ? 1 : shape.back();
  return {columns == 0 ? 0 : spec.in_size() / columns, columns};
}

bool supports(const NodeSpec& spec) {
  const DType from = spec.in_type(), to = spec.out_type();
  if ((from != DType::kFloat && from != DType::kBFloat16) || !is_8_bit_float(to)) return false;
  bool is_there = false;
  with_kernel_of_type(spec, sizes_of(spec).is_whole(), [&](auto kernel) { is_there = kernel != nullptr; });
  return is_there;
}

Prepared prepare_quantize(const NodeSpec& spec) {
  const Outputs outputs = outputs_of(spec);
  const auto [rows, columns] = sizes_of(spec);
  const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows,
                column_tiles = (columns + kTileColumns - 1) / kTileColumns;
  const int64_t tiles = row_tiles * column_tiles;
  const bool has_maxima = outputs.magnitude >= 0, has_sums = outputs.sums >= 0;
  const bool sums_stored = spec.node().attr("sums_of", "x") == kSumsOfStored;
  const int operand = input_at(spec.node(), "operand");
  const size_t bytes_of_maxima = has_maxima ? static_cast<size_t>(tiles) * sizeof(uint32_t) : 0,
               bytes_of_sums = has_sums ? static_cast<size_t>(row_tiles * columns) * sizeof(float) : 0;
  Prepared prepared;
  prepared.workspace = bytes_of_maxima + bytes_of_sums;
  with_kernel_of_type(spec, Sizes{rows, columns}.is_whole(), [&]<typename S>(void (*kernel)(Matrix<S>)) {
    prepared.run = [=](const Launch& launch) {
      const auto output = [&]<typename T>(int number, T) { return number < 0 ? nullptr : launch.out<T>(number); };
      Matrix<S> m = {rows,
                     columns,
                     column_tiles,
                     launch.in<S>(0),
                     nullptr,
                     launch.in<float>(1),
                     output(outputs.by_rows, uint8_t{}),
                     output(outputs.by_columns, uint8_t{}),
                     has_maxima ? launch.scratch<uint32_t>() : nullptr,
                     nullptr,
                     sums_stored};
      if (operand >= 0) m.operand = launch.in<S>(operand);
      if (has_sums) m.sums = launch.scratch<float>() + (has_maxima ? tiles : 0);
      if (tiles > 0) enqueue(launch, "quantize_tiles", kernel, static_cast<unsigned>(tiles), kTileThreads, 0, m);
      if (!has_maxima && !has_sums) return;
      const int64_t blocks = has_sums ? (columns + gpu::kWarpSize - 1) / gpu::kWarpSize : 0;
      enqueue(launch, "finish_quantization", finish_quantization, static_cast<unsigned>(blocks + 1), kThreads, 0, tiles,
              m.maxima, output(outputs.magnitude, float{}), row_tiles, columns, m.sums, output(outputs.sums, float{}));
    };
  });
  return prepared;
}

}  // namespace

std::vector<Kernel> quantize_kernels() { return {{"Quantize", supports, prepare_quantize, kDomain}}; }

}  // namespace onnx_train::cuda
