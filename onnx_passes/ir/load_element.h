// Reads elements of arrays that may be anywhere in a mapped file: at addresses without alignment, bools of any byte.
// Pure functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace onnx_train {

// Element i of the array of T at `data`.
template <typename T>
T load_element(const void* data, int64_t i) {
  using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
  Stored element;
  std::memcpy(&element, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  if constexpr (std::is_same_v<T, bool>) {
    return element != 0;
  } else {
    return element;
  }
}

}  // namespace onnx_train
