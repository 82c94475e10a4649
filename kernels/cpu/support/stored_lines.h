// Rows of elements in either storage type. Mixed precision stores tensors in bfloat16; kernels that work row by row
// compute in float32. A bfloat16 row is converted into scratch memory, which stays in the cache, and results are
// rounded as by Cast; other rows are used in place. All storage types share one compiled loop and give the same bits as
// casts around the kernel. Plain values; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

inline bool is_narrow(DType dtype) { return dtype == DType::kBFloat16; }

// The type in which a kernel computes on tensors of this type.
inline DType computed_type(DType dtype) { return is_narrow(dtype) ? DType::kFloat : dtype; }

inline bool is_float32_or_narrow(DType dtype) { return computed_type(dtype) == DType::kFloat; }

// Whether all floating-point inputs and outputs of the node have the type that it computes in, float32 or float64. If
// it computes in float32, the listed inputs and outputs may be bfloat16.
inline bool computes_in_one_type(const NodeSpec& spec, std::initializer_list<int> narrow_inputs,
                                 std::initializer_list<int> narrow_outputs) {
  DType computed = DType::kUndefined;
  const auto fits = [&](DType dtype, int i, std::initializer_list<int> narrow) {
    if (!is_float(dtype)) return true;
    if (std::find(narrow.begin(), narrow.end(), i) != narrow.end()) dtype = computed_type(dtype);
    if (computed == DType::kUndefined) computed = dtype;
    return dtype == computed;
  };
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (spec.has_input(i) && !fits(spec.in_type(i), i, narrow_inputs)) return false;
  }
  for (int i = 0; i < spec.num_outputs(); ++i) {
    if (spec.has_output(i) && !fits(spec.out_type(i), i, narrow_outputs)) return false;
  }
  return computed == DType::kFloat || computed == DType::kDouble;
}

// The number of rows of `n` elements that are worth one call.
inline int64_t lines_at_once(int64_t n) { return std::max<int64_t>(1, 2048 / std::max<int64_t>(n, 1)); }

// An input. T is the type of the computation; bfloat16 elements are converted to float.
template <typename T>
class LinesIn {
 public:
  LinesIn(const void* data, bool narrow) : data_(data), narrow_(narrow) {}

  bool there() const { return data_ != nullptr; }
  bool narrow() const { return narrow_; }
  // Returns `n` elements from `offset` on: in place, or converted into `scratch`.
  const T* get(int64_t offset, int64_t n, T* scratch) const {
    if constexpr (std::is_same_v<T, float>) {
      if (narrow_) {
        const BFloat16* from = static_cast<const BFloat16*>(data_) + offset;
        vectorized([=] {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) scratch[i] = load(from[i]);
        });
        return scratch;
      }
    }
    return static_cast<const T*>(data_) + offset;
  }

 private:
  const void* data_;
  bool narrow_;
};

template <typename T>
class LinesOut {
 public:
  LinesOut(void* data, bool narrow) : data_(data), narrow_(narrow) {}

  bool there() const { return data_ != nullptr; }
  bool narrow() const { return narrow_; }
  // Returns where to compute the elements from `offset` on: in place, or in `scratch`.
  T* place(int64_t offset, T* scratch) const { return narrow_ ? scratch : static_cast<T*>(data_) + offset; }
  // Stores `n` elements that were computed in `scratch`; does nothing if they were computed in place.
  void put(int64_t offset, int64_t n, const T* scratch) const {
    if constexpr (std::is_same_v<T, float>) {
      if (!narrow_) return;
      BFloat16* to = static_cast<BFloat16*>(data_) + offset;
      vectorized([=] {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) to[i] = store<BFloat16>(scratch[i]);
      });
    }
  }

 private:
  void* data_;
  bool narrow_;
};

}  // namespace onnx_train::cpu
