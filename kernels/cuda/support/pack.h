// Neighbouring elements that a thread loads or stores with one access.
#pragma once

#include <cstdint>

namespace onnx_train::cuda {

inline constexpr int64_t kVectorBytes = 16;  // a thread's largest access; products are chosen for this alignment

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

}  // namespace onnx_train::cuda
