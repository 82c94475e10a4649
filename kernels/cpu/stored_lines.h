// Lines of numbers, whichever way they are stored. Mixed precision keeps tensors in bfloat16; kernels that work line by
// line compute on them in float32. A narrow line is widened into scratch memory, which stays in the cache, and what
// comes out is rounded as Cast does it; all other lines are worked on where they lie. So every way to store a tensor
// shares one machine code, and the bits are those that casts around the kernel would give.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/stored.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

inline bool is_narrow(DType dtype) { return dtype == DType::kBFloat16; }

// What a kernel computes in whose tensors have this type.
inline DType computed_type(DType dtype) { return is_narrow(dtype) ? DType::kFloat : dtype; }

inline bool is_float32_or_narrow(DType dtype) { return computed_type(dtype) == DType::kFloat; }

// How many lines of `n` elements are worth a call.
inline int64_t lines_at_once(int64_t n) { return std::max<int64_t>(1, 2048 / std::max<int64_t>(n, 1)); }

// An input. T is what is computed in; narrow elements are widened to float.
template <typename T>
class LinesIn {
 public:
  LinesIn(const void* data, bool narrow) : data_(data), narrow_(narrow) {}

  bool there() const { return data_ != nullptr; }
  bool narrow() const { return narrow_; }
  // `n` elements from `offset` on: in their place, or widened in `scratch`.
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

// An output.
template <typename T>
class LinesOut {
 public:
  LinesOut(void* data, bool narrow) : data_(data), narrow_(narrow) {}

  bool there() const { return data_ != nullptr; }
  bool narrow() const { return narrow_; }
  // Where to compute the elements from `offset` on: in their place, or in `scratch`.
  T* place(int64_t offset, T* scratch) const { return narrow_ ? scratch : static_cast<T*>(data_) + offset; }
  // Stores `n` elements that were computed in `scratch`; there is nothing to do for those that are in their place.
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
