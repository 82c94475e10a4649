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

// A row of n elements, at most kRowThreads kKept; each thread keeps up to kKept of them, in vectors, while it computes.
// Places are a thread's first one plus constants, so that they take no registers.
template <int kRowThreads, int kKept>
struct KeptRow {
  static constexpr int kVector = std::min(kKept, kRowVector);
  template <typename X>
  using Vector = Elements<kVector, X>;

  // The place in the row of the calling thread's first element; the places of its k-th from there on.
  __device__ static int first() { return static_cast<int>(RowThreads<kRowThreads>::first()) * kVector; }
  __device__ static constexpr int place(int k) { return k / kVector * kRowThreads * kVector + k % kVector; }
  // Whether the thread's k-th element is within the row.
  __device__ static bool has(int k, int64_t n) { return place(k) < static_cast<int>(n) - first(); }

  // Calls f(k) for the thread's elements.
  template <typename F>
  __device__ static void for_each(int64_t n, const F& f) {
    for (int k = 0; k < kKept; ++k) {
      if (has(k, n)) f(k);
    }
  }
  // Returns the thread's elements k to k + kVector - 1 of a row; those after its end are zeros.
  template <typename X>
  __device__ static Vector<X> load_at(int k, const X* row, int64_t n) {
    const X* const from = row + first();
    if (n % kVector == 0 && has(k, n)) return load<kVector>(from + place(k));
    Vector<X> elements = {};
    for (int e = 0; e < kVector; ++e) {
      if (has(k + e, n)) elements[e] = from[place(k + e)];
    }
    return elements;
  }
  template <typename X, typename T>
  __device__ static void load_all(T (&to)[kKept], const X* row, int64_t n) {
    for (int k = 0; k < kKept; k += kVector) {
      const auto elements = load_at(k, row, n);
      for (int e = 0; e < kVector; ++e) to[k + e] = widened(elements[e]);
    }
  }
  template <typename Y>
  __device__ static void store_at(int k, const Vector<Y>& elements, Y* row, int64_t n) {
    Y* const to = row + first();
    if (n % kVector == 0 && has(k, n)) return store(elements, to + place(k));
    for (int e = 0; e < kVector; ++e) {
      if (has(k + e, n)) to[place(k + e)] = elements[e];
    }
  }
};

}  // namespace onnx_train::cuda
