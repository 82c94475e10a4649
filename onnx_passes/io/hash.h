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
  ~Hash();

  void add(const std::string& bytes) {
    add_size(bytes.size());
    add_bytes(bytes.data(), bytes.size());
  }
  // The length precedes the bytes, so that "ab", "c" differs from "a", "bc".
  void add_size(uint64_t size) { add_bytes(&size, sizeof size); }
  void add_bytes(const void* bytes, size_t size);
  std::string hex() const;

 private:
  struct State;  // the library's name for its own depends on how it is compiled
  std::unique_ptr<State> state_;
};

}  // namespace onnx_train
