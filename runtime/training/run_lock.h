// One run at a time trains into a folder. A process that ends, however it ends, gives its lock back. Movable; one
// thread at a time.
#pragma once

#include <string>

#include "platform/file.h"

namespace onnx_train {

class RunLock {
 public:
  RunLock() = default;  // holds none
  // Locks the folder, which exists. Throws Error if another run holds it, and if the folder cannot be opened. File
  // systems that know no such locks give one without effect.
  explicit RunLock(const std::string& folder);
  bool is_held() const { return folder_.is_open(); }

 private:
  platform::File folder_;
};

}  // namespace onnx_train
