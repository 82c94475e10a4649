// Neighbouring elements that a thread loads or stores with one access.
#pragma once

namespace onnx_train::cuda {

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

}  // namespace onnx_train::cuda
