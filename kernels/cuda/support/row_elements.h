// The elements of a row that threads share (row_threads.h), read 16 bytes at a time. For kernels.
//
// A thread has the same elements for every element type, so that sums of 16-bit numbers and of the same numbers in
// float32 have equal bits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/row_threads.h"
#include "kernels/cuda/support/stored.h"

namespace onnx_train::cuda {

constexpr int kRowVector = static_cast<int>(kVectorBytes / 2);  // elements

// The vectors of a row. Elements before the first multiple of kRowVector in the tensor, and after the last whole
// vector, are read one by one.
struct RowVectors {
  int64_t begin, count;

  __device__ RowVectors(int64_t offset, int64_t n) {
    begin = (kRowVector - offset % kRowVector) % kRowVector;
    begin = begin < n ? begin : n;
    count = (n - begin) / kRowVector;
  }
  __device__ int64_t end() const { return begin + count * kRowVector; }
};

// Calls f(i, x[offset + i stride]), in ascending order, for the calling thread's elements of a row of n elements.
template <int kRowThreads, typename X, typename F>
__device__ void for_each_in_row(const X* x, int64_t offset, int64_t n, int64_t stride, const F& f) {
  const int64_t first = RowThreads<kRowThreads>::first();
  const X* const row = x + offset;
  if (kRowThreads == 1 || stride != 1) {
    for (int64_t i = first; i < n; i += kRowThreads) f(i, row[i * stride]);
    return;
  }
  const RowVectors vectors(offset, n);
  for (int64_t i = first; i < vectors.begin; i += kRowThreads) f(i, row[i]);
  for (int64_t v = first; v < vectors.count; v += kRowThreads) {
    const int64_t at = vectors.begin + v * kRowVector;
    const auto elements = load<kRowVector>(row + at);
    for (int k = 0; k < kRowVector; ++k) f(at + k, elements[k]);
  }
  for (int64_t i = vectors.end() + first; i < n; i += kRowThreads) f(i, row[i]);
}

// y[offset + i stride] = f(i, x[offset + i stride]) for the calling thread's elements; y may be x.
template <int kRowThreads, typename X, typename Y, typename F>
__device__ void transform_row(const X* x, Y* y, int64_t offset, int64_t n, int64_t stride, const F& f) {
  const int64_t first = RowThreads<kRowThreads>::first();
  const X* const from = x + offset;
  Y* const to = y + offset;
  if (kRowThreads == 1 || stride != 1) {
    for (int64_t i = first; i < n; i += kRowThreads) to[i * stride] = f(i, from[i * stride]);
    return;
  }
  const RowVectors vectors(offset, n);
  for (int64_t i = first; i < vectors.begin; i += kRowThreads) to[i] = f(i, from[i]);
  for (int64_t v = first; v < vectors.count; v += kRowThreads) {
    const int64_t at = vectors.begin + v * kRowVector;
    const auto elements = load<kRowVector>(from + at);
    Elements<kRowVector, Y> results;
    for (int k = 0; k < kRowVector; ++k) results[k] = f(at + k, elements[k]);
    store(results, to + at);
  }
  for (int64_t i = vectors.end() + first; i < n; i += kRowThreads) to[i] = f(i, from[i]);
}

// A row of at most kRowThreads kKept elements; each thread keeps up to kKept of them, in vectors, while it computes.
template <int kRowThreads, int kKept>
struct KeptRow {
  static constexpr int kVector = std::min(kKept, kRowVector);

  // The position in the row of the calling thread's k-th element.
  __device__ static int64_t at(int k) {
    return (RowThreads<kRowThreads>::first() + int64_t{k / kVector} * kRowThreads) * kVector + k % kVector;
  }
  // Calls f(k) for the thread's elements within a row of n.
  template <typename F>
  __device__ static void for_each(int64_t n, const F& f) {
    for (int k = 0; k < kKept; ++k) {
      if (at(k) < n) f(k);
    }
  }
  // Reads the thread's elements of the row that starts at x[row n].
  template <typename X, typename T>
  __device__ static void read(const X* x, int64_t row, int64_t n, T (&to)[kKept]) {
    x += row * n;
    if (n % kVector != 0) return for_each(n, [&](int k) { to[k] = widened(x[at(k)]); });
    for (int k = 0; k < kKept; k += kVector) {
      if (at(k) >= n) continue;
      const auto elements = load<kVector>(x + at(k));
      for (int e = 0; e < kVector; ++e) to[k + e] = widened(elements[e]);
    }
  }
  // Writes f(k), plus the element of `added` at the same position unless that is null; y may be `added`.
  template <typename Y, typename F>
  __device__ static void write(Y* y, int64_t row, int64_t n, const F& f,
                               const std::type_identity_t<Y>* added = nullptr) {
    y += row * n;
    if (added) added += row * n;
    const auto sum = [&](int k, Y more) { return math::convert<Y>(added ? f(k) + widened(more) : f(k)); };
    if (n % kVector != 0) return for_each(n, [&](int k) { y[at(k)] = sum(k, added ? added[at(k)] : Y(0.0f)); });
    for (int k = 0; k < kKept; k += kVector) {
      if (at(k) >= n) continue;
      Elements<kVector, Y> elements = {};
      if (added) elements = load<kVector>(added + at(k));
      for (int e = 0; e < kVector; ++e) elements[e] = sum(k + e, elements[e]);
      store(elements, y + at(k));
    }
  }
};

}  // namespace onnx_train::cuda
