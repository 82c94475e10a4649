// Neighbouring elements that a thread loads or stores together, by accesses of up to 16 bytes.
#pragma once

#include <cstdint>

namespace onnx_train::cuda {

inline constexpr int64_t kVectorBytes = 16;  // a thread's largest access; products are chosen for this alignment

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < kVectorBytes ? sizeof(T) * kCount : kVectorBytes) Pack {
  T at[kCount];
};

}  // namespace onnx_train::cuda
