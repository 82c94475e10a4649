#include "onnx_passes/io/file.h"

#include <algorithm>
#include <cerrno>

namespace onnx_train {
namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;  // Linux transfers at most 2 GiB per call

}  // namespace

bool File::read(size_t offset, size_t size, void* out) const {
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = pread(descriptor_, bytes, std::min(size, kMaxTransfer), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    const auto n = static_cast<size_t>(got);
    bytes += n;
    offset += n;
    size -= n;
  }
  return true;
}

bool File::write(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = ::write(descriptor_, bytes, std::min(size, kMaxTransfer));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes += put;
    size -= static_cast<size_t>(put);
  }
  return true;
}

std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, std::max<size_t>(slash, 1)), path.substr(slash + 1)};
}

}  // namespace onnx_train
