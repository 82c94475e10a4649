#include "onnx_passes/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "onnx_passes/ir/error.h"

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

std::string read_file(const std::string& path) {
  const auto refuse = [&] { fail_as(ErrorCode::kFile, "cannot read ", path, ": ", std::strerror(errno)); };
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // opening a pipe must not block
  if (!file.is_open()) refuse();
  struct stat status = {};
  if (fstat(file.descriptor(), &status) != 0) refuse();
  if (!S_ISREG(status.st_mode)) fail_as(ErrorCode::kFile, "cannot read ", path, ": it is no regular file");
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = ::read(file.descriptor(), bytes.data() + have, std::min(bytes.size() - have, kMaxTransfer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse();
    if (got == 0) break;  // it has become shorter
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

namespace {

// Empty if nothing has this path.
std::optional<struct stat> look_at(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  fail_as(ErrorCode::kFile, "cannot look at ", path, ": ", std::strerror(errno));
}

}  // namespace

bool path_exists(const std::string& path) { return look_at(path).has_value(); }

bool folder_exists(const std::string& path) {
  const auto found = look_at(path);
  return found && S_ISDIR(found->st_mode);
}

void remove_file(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR)
    fail_as(ErrorCode::kFile, "cannot remove ", path, ": ", std::strerror(errno));
}

std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, std::max<size_t>(slash, 1)), path.substr(slash + 1)};
}

}  // namespace onnx_train
