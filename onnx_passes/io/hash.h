// XXH3-128 of bytes that come in pieces. One owner; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace onnx_train {

class Hash {
 public:
  Hash();

  void add(const std::string& bytes) {
    add_size(bytes.size());
    add_bytes(bytes.data(), bytes.size());
  }
  // The length precedes the bytes, so that "ab", "c" differs from "a", "bc".
  void add_size(uint64_t size) { add_bytes(&size, sizeof size); }
  void add_bytes(const void* bytes, size_t size);
  std::string hex() const;

 private:
  std::unique_ptr<void, void (*)(void*)> state_;  // XXH3_state_t, whose name depends on how xxHash is built
};

}  // namespace onnx_train
