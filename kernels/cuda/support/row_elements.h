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

// Calls f(i, elements) for the calling thread's elements x[offset + i stride] of a row of n elements, in ascending
// order: for kRowVector neighbours from place i on, or for a single one. Several vectors are loaded before the first is
// used: 64 bytes, whose latency is paid once.
template <int kRowThreads, typename X, typename F>
__device__ void for_each_vector_in_row(const X* x, int64_t offset, int64_t n, int64_t stride, const F& f) {
  constexpr int kFlight = std::max(1, static_cast<int>(64 / (kRowVector * sizeof(X))));
  const int64_t first = RowThreads<kRowThreads>::first();
  const X* const row = x + offset;
  const auto single = [&](int64_t i, const X& value) { f(i, StoredElements<1, X>{{{{{value}}}}}); };
  if (kRowThreads == 1 || stride != 1) {
    for (int64_t i = first; i < n; i += kRowThreads) single(i, row[i * stride]);
    return;
  }
  const RowVectors vectors(offset, n);
#pragma unroll 1
  for (int64_t i = first; i < vectors.begin; i += kRowThreads) single(i, row[i]);
  for (int64_t v = first; v < vectors.count; v += kFlight * kRowThreads) {
    const X* const from = row + vectors.begin + v * kRowVector;
    StoredElements<kRowVector, X> loaded[kFlight] = {};
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      if (v + j * kRowThreads < vectors.count) loaded[j] = load_stored<kRowVector>(from + j * kRowThreads * kRowVector);
    }
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      if (v + j * kRowThreads < vectors.count) f(vectors.begin + (v + j * kRowThreads) * kRowVector, loaded[j]);
    }
  }
#pragma unroll 1
  for (int64_t i = vectors.end() + first; i < n; i += kRowThreads) single(i, row[i]);
}

// Calls f(i, x[offset + i stride]), in ascending order, for the calling thread's elements of a row of n elements.
template <int kRowThreads, typename X, typename F>
__device__ void for_each_in_row(const X* x, int64_t offset, int64_t n, int64_t stride, const F& f) {
  for_each_vector_in_row<kRowThreads>(x, offset, n, stride,
                                      [&]<int kCount>(int64_t i, const StoredElements<kCount, X>& elements) {
                                        for (int k = 0; k < kCount; ++k) f(i + k, elements[k]);
                                      });
}

// Stores f(i, elements), Elements of Ys, in the place in y of the elements that for_each_vector_in_row passes; y may be
// x.
template <int kRowThreads, typename X, typename Y, typename F>
__device__ void transform_vectors_in_row(const X* x, Y* y, int64_t offset, int64_t n, int64_t stride, const F& f) {
  for_each_vector_in_row<kRowThreads>(x, offset, n, stride,
                                      [&]<int kCount>(int64_t i, const StoredElements<kCount, X>& elements) {
                                        store<kCount, Y>(f(i, elements), y + offset + i * stride);
                                      });
}

// y[offset + i stride] = f(i, x[offset + i stride]) for the calling thread's elements; y may be x.
template <int kRowThreads, typename X, typename Y, typename F>
__device__ void transform_row(const X* x, Y* y, int64_t offset, int64_t n, int64_t stride, const F& f) {
  transform_vectors_in_row<kRowThreads>(x, y, offset, n, stride,
                                        [&]<int kCount>(int64_t i, const StoredElements<kCount, X>& elements) {
                                          Elements<kCount, Y> results;
                                          for (int k = 0; k < kCount; ++k) results[k] = f(i + k, elements[k]);
                                          return results;
                                        });
}

// A row of n elements, at most kRowThreads kKept; each thread keeps up to kKept of them while it computes, in vectors
// of kVector, a divisor of n. Places are a thread's first one plus constants, so that they take no registers.
template <int kRowThreads, int kKept, int kVector = kRowVector>
struct KeptRow {
  static_assert(kKept % kVector == 0);
  static constexpr int kCount = kKept, kOfVector = kVector;
  using Threads = RowThreads<kRowThreads>;
  template <typename X>
  using Vector = Elements<kVector, X>;

  // A thread's elements of a row, as they are stored.
  template <typename X>
  struct Stored {
    StoredElements<kVector, X> vectors[kKept / kVector];
    __device__ X operator[](int k) const { return vectors[k / kVector][k % kVector]; }
  };

  // The place in the row of the calling thread's first element; the places of its k-th from there on.
  __device__ static int first() { return static_cast<int>(RowThreads<kRowThreads>::first()) * kVector; }
  __device__ static constexpr int place(int k) { return k / kVector * kRowThreads * kVector + k % kVector; }
  // Whether the vector with the thread's k-th element is within the row.
  __device__ static bool has(int k, int64_t n) { return place(k - k % kVector) < static_cast<int>(n) - first(); }

  // Returns the thread's elements k to k + kVector - 1 of a row; those after its end are zeros.
  template <typename X>
  __device__ static StoredElements<kVector, X> load_at(int k, const X* row, int64_t n) {
    if (!has(k, n)) return {};
    return load_stored<kVector>(row + first() + place(k));
  }
  template <typename X>
  __device__ static Stored<X> load_all(const X* row, int64_t n) {
    Stored<X> all;
    for (int k = 0; k < kKept; k += kVector) all.vectors[k / kVector] = load_at(k, row, n);
    return all;
  }
  template <typename X, typename T>
  __device__ static void widen(const Stored<X>& all, T (&to)[kKept]) {
    for (int k = 0; k < kKept; ++k) to[k] = widened(all[k]);
  }
  // Makes zeros of the elements after the end of the row.
  template <typename T>
  __device__ static void clear_rest(T (&values)[kKept], int64_t n) {
    for (int k = 0; k < kKept; ++k) values[k] = has(k, n) ? values[k] : T{0};
  }
  template <typename Y>
  __device__ static void store_at(int k, const Vector<Y>& elements, Y* row, int64_t n) {
    if (has(k, n)) store(elements, row + first() + place(k));
  }
};

}  // namespace onnx_train::cuda
