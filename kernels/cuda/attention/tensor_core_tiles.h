// Products of tiles on tensor cores, in the place of those in registers (tiles.h). For kernels.
//
// A thread's elements of a product are those of the accumulators of mma (support/tensor_core.h), whose columns are
// numbered so that
//   - a product's accumulators are operands of the next one as they are: a thread has the columns t and t + 4 of eight,
//   - columns of a tile are read in fours, of which each element is a column of another instruction,
//   - no read has a conflict of banks. Rows are 4 (mod 32) banks apart, so eight rows of four elements have all 32.
//     Shared memory serves the fours of lanes g = 2i and 2i + 1 at once: four fours of rows that are 4 banks apart, and
//     those that are 16 banks after them.
#pragma once

#include "kernels/cuda/attention/tiles.h"
#include "kernels/cuda/support/tensor_core.h"

namespace onnx_train::cuda {

// The threads of a block as a grid of kDown x kAcross, of which a warp is 8 x 4.
template <int kDown_, int kAcross_>
struct TensorCoreGrid {
  static constexpr bool kOnTensorCores = true;
  static constexpr int kDown = kDown_, kAcross = kAcross_, kThreads = kDown * kAcross;

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int lane_column() { return lane() % 4; }
  // The column, or the four, that is an instruction's column i: 0, 4, 1, 5, ..
  __device__ static int permuted(int i) { return i % 2 * 4 + i / 2; }
  __device__ static int warp_row() { return warp() / (kAcross / 4) * 8; }
  // The first of the thread's rows, which are kDown apart, and of its columns of scores, which are 4 apart.
  __device__ static int row() { return warp_row() + lane() / 4; }
  __device__ static int column() {
    static_assert(kAcross == 4);
    return lane_column();
  }
  // The number of the thread's i-th four of columns of a product with columns of a tile. A warp has eight fours in a
  // row, and the thread two of them.
  __device__ static int four(int i) {
    return (i / 2 * (kAcross / 4) + warp() % (kAcross / 4)) * 8 + i % 2 * 4 + lane_column();
  }
  // The number of the thread's r-th row of a product with factors in registers.
  __device__ static int factor_row(int r) { return row() + r * kDown; }

  // Merges the values of a warp's threads in one row; every thread gets the result.
  template <typename T, typename F>
  __device__ static T merge_across(T value, const F& merge) {
    for (const int bit : {1, 2}) {
      value = merge(value, exchange_words(value, [=](unsigned w) { return __shfl_xor_sync(gpu::kAllLanes, w, bit); }));
    }
    return value;
  }
};

template <typename Threads>
concept OnTensorCores = Threads::kOnTensorCores;

// Waits for the calling thread's copies. On tensor cores it also rounds those that load_tile made to a tile of kRows
// rows, so that nobody rounds them again when they are read; for other threads they are there after a barrier.
template <typename Threads, int kRows, int kWidth, int kStride, typename T>
__device__ void wait_for_tile(T* tile) {
  gpu::wait_for_copies();
  if constexpr (Threads::kOnTensorCores) {
    constexpr int kFours = kWidth / 4, kStep = Threads::kThreads / kFours;
    const int thread = static_cast<int>(threadIdx.x);
    tile += thread / kFours * kStride + thread % kFours * 4;
#pragma unroll 2
    for (int row = 0; row < kRows; row += kStep, tile += kStep * kStride) {
      Four<T> four = four_at(tile);
#pragma unroll
      for (T& element : four.at) element = gpu::to_tf32(element);
      *gpu::vector_at<Four<T>>(tile) = four;
    }
  }
}

// Rounds factors in registers.
template <int kRows, int kColumns>
__device__ void round_factors(float (&values)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (float& value : values[r]) value = gpu::to_tf32(value);
  }
}

// Adds a product of fragments to elements (r, c), (r, other c), (r + 1, c) and (r + 1, other c) of the sums.
template <int kRows, int kColumns>
__device__ void add_fragments(const float (&a)[4], const float (&b)[2], int r, int c, int other,
                              float (&sums)[kRows][kColumns]) {
  float d[4] = {sums[r][c], sums[r][other], sums[r + 1][c], sums[r + 1][other]};
  gpu::multiply_add_16x8x8(d, a, b);
  sums[r][c] = d[0];
  sums[r][other] = d[1];
  sums[r + 1][c] = d[2];
  sums[r + 1][other] = d[3];
}

// Returns where the lane's row of load_matrices starts if matrices 0 and 1 are rows `apart` apart, and 2 and 3 four
// columns after them, as the fragments of mma's first operand are.
template <typename Threads, int kStride>
__device__ const float* rows_of_first(const float* tile, int apart) {
  const int matrix = Threads::lane() / 8;
  return tile + (Threads::lane() % 8 + matrix % 2 * apart) * kStride + matrix / 2 * 4;
}
// The same for two fragments of the second operand: matrices 1 and 3 are four columns after 0 and 2, and 2 and 3 are
// the next eight rows.
template <typename Threads, int kStride>
__device__ const float* rows_of_second(const float* tile) {
  const int matrix = Threads::lane() / 8;
  return tile + (Threads::permuted(Threads::lane() % 8) + matrix / 2 * 8) * kStride + matrix % 2 * 4;
}

template <OnTensorCores Threads, int kWidth, int kStride, int kRows, int kColumns>
__device__ void add_row_products(const float* a, const float* b, float (&sums)[kRows][kColumns]) {
  static_assert(kWidth % 16 == 0 && kStride % 32 == 4 && kRows % 2 == 0 && kColumns % 4 == 0);
  a = rows_of_first<Threads, kStride>(a + Threads::warp_row() * kStride, Threads::kDown);
  b = rows_of_second<Threads, kStride>(b);
#pragma unroll 1
  for (int d = 0; d < kWidth; d += 8) {
    float own[kRows / 2][4];
#pragma unroll
    for (int r = 0; r < kRows; r += 2) gpu::load_matrices(own[r / 2], a + r * Threads::kDown * kStride + d);
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      float others[4];
      gpu::load_matrices(others, b + c * 4 * kStride + d);
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
#pragma unroll
        for (int r = 0; r < kRows; r += 2) {
          add_fragments(own[r / 2], {others[e], others[e + 1]}, r, c + e, c + e + 1, sums);
        }
      }
    }
  }
}

// sums += a b, over 8 rows of b from its row `first` on. fragment(r, a) makes a's fragment of rows r and r + 1.
template <typename Threads, int kStride, int kRows, int kColumns, typename F>
__device__ void add_eight_products(const F& fragment, const float* b, int first, float (&sums)[kRows][kColumns]) {
  static_assert(kStride % 32 == 4 && kRows % 2 == 0 && kColumns % 8 == 0);
  // Lane g's four has the columns g of four instructions.
  b += (first + Threads::lane_column()) * kStride +
       (Threads::four(0) - Threads::lane_column() + Threads::permuted(Threads::lane() / 4)) * 4;
#pragma unroll
  for (int c = 0; c < kColumns; c += 8) {
    const Four<float> low = four_at(b + c * Threads::kAcross), high = four_at(b + c * Threads::kAcross + 4 * kStride);
#pragma unroll
    for (int r = 0; r < kRows; r += 2) {
      float a[4];
      fragment(r, a);
#pragma unroll
      for (int e = 0; e < 4; ++e) add_fragments(a, {low.at[e], high.at[e]}, r, c + e, c + 4 + e, sums);
    }
  }
}

template <OnTensorCores Threads, int kInner, int kStrideA, int kStride, int kRows, int kColumns>
__device__ void add_products(const float* a, const float* b, float (&sums)[kRows][kColumns]) {
  static_assert(kStrideA % 32 == 4);
  a = rows_of_first<Threads, kStrideA>(a + Threads::warp_row() * kStrideA, Threads::kDown);
#pragma unroll 1
  for (int i = 0; i < kInner; i += 8) {
    const auto fragment = [&](int r, float(&to)[4]) { gpu::load_matrices(to, a + r * Threads::kDown * kStrideA + i); };
    add_eight_products<Threads, kStride>(fragment, b, i, sums);
  }
}

// The same for factors that are in registers: results of add_row_products, rounded.
template <OnTensorCores Threads, int kStride, int kRows, int kInner, int kColumns>
__device__ void add_products_of(const float (&factors)[kRows][kInner], const float* b, float (&sums)[kRows][kColumns]) {
#pragma unroll
  for (int i = 0; i < kInner; i += 2) {
    const auto fragment = [&](int r, float(&to)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = factors[r + e % 2][i + e / 2];
    };
    add_eight_products<Threads, kStride>(fragment, b, i * 4, sums);
  }
}

}  // namespace onnx_train::cuda
