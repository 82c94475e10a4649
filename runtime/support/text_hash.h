// A number that the processes of a run derive from a text alike.
#pragma once

#include <xxhash.h>

#include <string_view>

namespace onnx_train {

inline uint32_t text_hash(std::string_view text) {
  return static_cast<uint32_t>(XXH3_64bits(text.data(), text.size()));
}

}  // namespace onnx_train
