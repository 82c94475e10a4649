#include "onnx_passes/io/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

std::string read_file(const std::string& path) {
  const auto refuse = [&] { fail_as(ErrorCode::kFile, "cannot read ", path, ": ", std::strerror(errno)); };
  const File file = platform::open_to_read(path);
  if (!file.is_open()) refuse();
  const std::optional<platform::FileStatus> status = file.status();
  if (!status) refuse();
  if (!status->is_regular) fail_as(ErrorCode::kFile, "cannot read ", path, ": it is no regular file");
  std::string bytes(status->size, '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const std::ptrdiff_t got = file.read_some(have, bytes.size() - have, bytes.data() + have);
    if (got < 0) refuse();
    if (got == 0) break;  // it has become shorter
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

namespace {

// Empty if nothing has this path.
std::optional<platform::FileStatus> look_at(const std::string& path) {
  const std::optional<platform::FileStatus> status = platform::status_of(path);
  if (status || errno == ENOENT || errno == ENOTDIR) return status;
  fail_as(ErrorCode::kFile, "cannot look at ", path, ": ", std::strerror(errno));
}

}  // namespace

bool path_exists(const std::string& path) { return look_at(path).has_value(); }

bool folder_exists(const std::string& path) {
  const auto found = look_at(path);
  return found && found->is_folder;
}

void remove_file(const std::string& path) {
  if (!platform::remove_file(path) && errno != ENOENT && errno != ENOTDIR)
    fail_as(ErrorCode::kFile, "cannot remove ", path, ": ", std::strerror(errno));
}

std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t slash = path.find_last_of(platform::kSeparators);
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, std::max<size_t>(slash, 1)), path.substr(slash + 1)};
}

}  // namespace onnx_train
