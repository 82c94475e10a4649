// Elements that a thread keeps while it computes. For kernels.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/support/gpu.h"
#include "kernels/cuda/support/pack.h"

namespace onnx_train::cuda {

// Contiguous elements that a thread loads and stores 16 bytes at a time.
template <int kCount, typename X>
struct Elements {
  static constexpr int kChunk = std::min(kCount, static_cast<int>(kVectorBytes / sizeof(X)));
  Pack<X, kChunk> chunks[kCount / kChunk];

  __device__ X& operator[](int i) { return chunks[i / kChunk].at[i % kChunk]; }
  __device__ X operator[](int i) const { return chunks[i / kChunk].at[i % kChunk]; }
};

template <int kCount, typename X>
__device__ Elements<kCount, X> load(const X* from) {
  Elements<kCount, X> elements;
  int i = 0;
  const auto* const chunks = gpu::vector_at<const std::remove_cvref_t<decltype(elements.chunks[0])>>(from);
  for (auto& chunk : elements.chunks) chunk = chunks[i++];
  return elements;
}

template <int kCount, typename X>
__device__ void store(const Elements<kCount, X>& elements, X* to) {
  int i = 0;
  auto* const chunks = gpu::vector_at<std::remove_cvref_t<decltype(elements.chunks[0])>>(to);
  for (const auto& chunk : elements.chunks) chunks[i++] = chunk;
}

// Contiguous elements as they are stored. Those of 16 bits stay in words of two until they are used: a compiler takes
// Elements of them apart where control flow joins, which costs registers and instructions.
template <int kCount, typename X>
struct StoredElements {
  static constexpr int kOfWord = sizeof(X) == 2 && kCount % 2 == 0 ? 2 : 1;
  using Word = std::conditional_t<kOfWord == 2, uint32_t, X>;
  Elements<kCount / kOfWord, Word> words;

  __device__ X operator[](int i) const {
    if constexpr (kOfWord == 1) {
      return words[i];
    } else {
      return std::bit_cast<X>(static_cast<uint16_t>(words[i / 2] >> i % 2 * 16));
    }
  }
};

template <int kCount, typename X>
__device__ StoredElements<kCount, X> load_stored(const X* from) {
  using Stored = StoredElements<kCount, X>;
  return {load<kCount / Stored::kOfWord>(reinterpret_cast<const typename Stored::Word*>(from))};
}

}  // namespace onnx_train::cuda
