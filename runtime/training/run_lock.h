// One run at a time trains into a folder. A process that ends, however it ends, gives its lock back. Movable; one
// thread at a time.
#pragma once

#include <string>
#include <utility>

namespace onnx_train {

class RunLock {
 public:
  RunLock() = default;  // holds none
  // Locks the folder, which exists. Throws Error if another run holds it, and if the folder cannot be opened. File
  // systems that know no such locks give one without effect.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RunLock& operator=(RunLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  bool is_held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

}  // namespace onnx_train
