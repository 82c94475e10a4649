// What the kernels of attention consist of: tiles of matrices in shared memory, the threads of a block that share them,
// and the products of tiles, of which each thread computes a part in registers. For kernels.
//
// Elements are read from shared memory in fours, and each one read serves several products. Rows of a tile are
// kStride elements apart, 4 more than they hold, so that fours of neighbouring rows are in different banks.
#pragma once

#include "kernels/cuda/support/gpu.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {

template <typename T>
using Four = Pack<T, 4>;

template <typename T>
__device__ Four<T> four_at(const T* from) {
  return *gpu::vector_at<const Four<T>>(from);
}

// A matrix of a tensor. Rows of contiguous elements are `stride` elements apart.
template <typename T>
struct Matrix {
  void* data;
  int64_t start, stride;
  DType stored;   // dtype_of<T>() or a 16-bit type
  bool in_fours;  // rows start at multiples of 4 elements and their length is one

  template <typename S>
  __device__ S* at(int64_t row, int column) const {
    return static_cast<S*>(data) + start + row * stride + column;
  }
  // Calls f(S{}) for the type in which elements are stored.
  template <typename F>
  __device__ void dispatch(const F& f) const {
    if constexpr (std::is_same_v<T, float>) {
      if (stored == DType::kBFloat16) return f(BFloat16{});
      if (stored == DType::kFloat16) return f(__half{});
    }
    f(T{});
  }
  // Reads up to 4 elements of a row of `width` elements; those after it are 0.
  __device__ void load(int64_t row, int column, int width, T* values) const {
    dispatch([&]<typename S>(S) {
      const S* const from = at<S>(row, column);
      if (in_fours && column < width) {
        const Four<S> four = four_at(from);
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = widened(four.at[e]);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = column + e < width ? widened(from[e]) : T{0};
      }
    });
  }
  // Writes up to 4 elements of a row of `width` elements.
  __device__ void store(int64_t row, int column, int width, const T* values) const {
    dispatch([&]<typename S>(S) {
      S* const to = at<S>(row, column);
      if (in_fours && column < width) {
        Four<S> four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.at[e] = math::convert<S>(values[e]);
        *gpu::vector_at<Four<S>>(to) = four;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (column + e < width) to[e] = math::convert<S>(values[e]);
        }
      }
    });
  }
};

// The matrices of a tensor, one for each head.
template <typename T>
struct Matrices {
  void* data;
  const int64_t* starts;
  int64_t stride;
  DType stored;
  bool in_fours;

  __device__ Matrix<T> of(int head) const { return {data, starts[head], stride, stored, in_fours}; }
};

// The threads of a block as a grid of kDown x kAcross. A warp is 4 x 8 of them. Shared memory serves 16 bytes to each
// lane of half a warp at once if the lanes' addresses are equal in pairs whose numbers differ in bit 0, or in bit 1; so
// these bits belong to different axes.
template <int kDown_, int kAcross_>
struct ThreadGrid {
  static constexpr bool kOnTensorCores = false;
  static constexpr int kDown = kDown_, kAcross = kAcross_, kThreads = kDown * kAcross;

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int row() { return warp() / (kAcross / 8) * 4 + (lane() & 1) + (lane() >> 2 & 2); }
  __device__ static int column() { return warp() % (kAcross / 8) * 8 + (lane() >> 1 & 3) + (lane() >> 2 & 4); }

  // The number of the thread's i-th four of columns of a product with columns of a tile.
  __device__ static int four(int i) { return column() + i * kAcross; }
  // The number of the thread's r-th row of a product with the transpose of factors.
  __device__ static int factor_row(int r) { return (row() + r / 4 * kDown) * 4 + r % 4; }

  // Merges the values of a warp's threads in one row; every thread gets the result.
  template <typename T, typename F>
  __device__ static T merge_across(T value, const F& merge) {
    for (const int bit : {2, 4, 16}) {
      value = merge(value, exchange_words(value, [=](unsigned w) { return __shfl_xor_sync(gpu::kAllLanes, w, bit); }));
    }
    return value;
  }
};

// Copies rows first.. first + kRows of a matrix of `width` columns into a tile of kWidth columns; rows from `end` on,
// and columns after `width`, become 0. Elements of type T are there after gpu::wait_for_copies and a barrier.
template <int kRows, int kWidth, int kStride, int kThreads, typename T>
__device__ void load_tile(T* tile, const Matrix<T>& from, int first, int end, int width) {
  constexpr int kFours = kWidth / 4, kStep = kThreads / kFours;  // of a row; rows that the block loads at once
  static_assert(kThreads % kFours == 0 && kRows % kStep == 0);
  const int thread = static_cast<int>(threadIdx.x), column = thread % kFours * 4;
  from.dispatch([&]<typename S>(S) {
    T* to = tile + thread / kFours * kStride + column;
    const S* at = from.template at<S>(first + thread / kFours, column);
    const int rows = column < width ? end - first - thread / kFours : 0;  // that exist from here on
    if (!from.in_fours) {
#pragma unroll 1
      for (int row = 0; row < kRows; row += kStep, to += kStep * kStride, at += kStep * from.stride) {
        for (int e = 0; e < 4; ++e) to[e] = row < rows && column + e < width ? widened(at[e]) : T{0};
      }
    } else if constexpr (std::is_same_v<S, T>) {
#pragma unroll
      for (int row = 0; row < kRows; row += kStep, to += kStep * kStride, at += kStep * from.stride) {
#pragma unroll
        for (int e = 0; e < 4; e += 16 / static_cast<int>(sizeof(T))) {
          gpu::copy_async<16>(to + e, row < rows ? at + e : from.template at<S>(0, 0), row < rows);
        }
      }
    } else {
#pragma unroll 4
      for (int row = 0; row < kRows; row += kStep, to += kStep * kStride, at += kStep * from.stride) {
        Four<T> four = {};
        if (row < rows) {
          const Four<S> narrow = four_at(at);
#pragma unroll
          for (int e = 0; e < 4; ++e) four.at[e] = widened(narrow.at[e]);
        }
        *gpu::vector_at<Four<T>>(to) = four;
      }
    }
  });
}

// sums[r][c] += row r of a · row c of b. The thread's rows are kDown apart, its columns kAcross.
template <typename Threads, int kWidth, int kStride, int kRows, int kColumns, typename T>
__device__ void add_row_products(const T* a, const T* b, T (&sums)[kRows][kColumns]) {
  a += Threads::row() * kStride;
  b += Threads::column() * kStride;
#pragma unroll 1
  for (int d = 0; d < kWidth; d += 4) {
    Four<T> others[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) others[c] = four_at(b + c * Threads::kAcross * kStride + d);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Four<T> own = four_at(a + r * Threads::kDown * kStride + d);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[r][c] += own.at[e] * others[c].at[e];
      }
    }
  }
}

// sums[r][c] += row r of a · column c of b, over kInner rows of b. The thread's rows are kDown apart; its columns are
// fours, 4 kAcross apart.
template <typename Threads, int kInner, int kStrideA, int kStride, int kRows, int kColumns, typename T>
__device__ void add_products(const T* a, const T* b, T (&sums)[kRows][kColumns]) {
  a += Threads::row() * kStrideA;
  b += Threads::column() * 4;
#pragma unroll 2
  for (int i = 0; i < kInner; i += 4) {
    Four<T> others[4][kColumns / 4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int c = 0; c < kColumns / 4; ++c) others[e][c] = four_at(b + (i + e) * kStride + c * Threads::kAcross * 4);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Four<T> own = four_at(a + r * Threads::kDown * kStrideA + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[r][c] += own.at[e] * others[e][c / 4].at[c % 4];
      }
    }
  }
}

// sums[r][c] += column r of a · column c of b, over kInner rows of both. The thread's rows are fours, 4 kDown apart;
// its columns are fours, 4 kAcross apart.
template <typename Threads, int kInner, int kStrideA, int kStride, int kRows, int kColumns, typename T>
__device__ void add_column_products(const T* a, const T* b, T (&sums)[kRows][kColumns]) {
  static_assert(kRows % 4 == 0 && kColumns % 4 == 0);
  a += Threads::row() * 4;
  b += Threads::column() * 4;
#pragma unroll 4
  for (int i = 0; i < kInner; ++i) {
    Four<T> own[kRows / 4], others[kColumns / 4];
#pragma unroll
    for (int r = 0; r < kRows / 4; ++r) own[r] = four_at(a + i * kStrideA + r * Threads::kDown * 4);
#pragma unroll
    for (int c = 0; c < kColumns / 4; ++c) others[c] = four_at(b + i * kStride + c * Threads::kAcross * 4);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[r][c] += own[r / 4].at[r % 4] * others[c / 4].at[c % 4];
    }
  }
}

// Writes the thread's elements of a product by add_row_products into a tile, whose rows are kRowStride apart and whose
// columns kColumnStride.
template <typename Threads, int kRowStride, int kColumnStride = 1, int kRows, int kColumns, typename T>
__device__ void store_products(T* tile, const T (&values)[kRows][kColumns]) {
  tile += Threads::row() * kRowStride + Threads::column() * kColumnStride;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      tile[r * Threads::kDown * kRowStride + c * Threads::kAcross * kColumnStride] = values[r][c];
    }
  }
}

}  // namespace onnx_train::cuda
