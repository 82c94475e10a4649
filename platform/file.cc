// What is the same on every system.
#include "platform/file.h"

namespace onnx_train::platform {

bool File::read(size_t offset, size_t size, void* out) const {
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    const std::ptrdiff_t got = read_some(offset, size, bytes);
    if (got <= 0) return false;
    const auto n = static_cast<size_t>(got);
    bytes += n;
    offset += n;
    size -= n;
  }
  return true;
}

}  // namespace onnx_train::platform
