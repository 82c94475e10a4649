#include "platform/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

namespace onnx_train::platform {
namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;  // Linux transfers at most 2 GiB per call

FileStatus status_from(const struct stat& status) {
#ifdef __APPLE__
  const timespec& modified = status.st_mtimespec;
#else
  const timespec& modified = status.st_mtim;
#endif
  return {.is_regular = S_ISREG(status.st_mode),
          .is_folder = S_ISDIR(status.st_mode),
          .size = static_cast<uint64_t>(status.st_size),
          .device = static_cast<uint64_t>(status.st_dev),
          .number = static_cast<uint64_t>(status.st_ino),
          .links = static_cast<uint64_t>(status.st_nlink),
          .modified_ns = int64_t{modified.tv_sec} * 1'000'000'000 + modified.tv_nsec};
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool File::close_now() { return close(std::exchange(descriptor_, -1)) == 0; }

std::optional<FileStatus> File::status() const {
  struct stat status = {};
  return fstat(descriptor_, &status) == 0 ? std::optional(status_from(status)) : std::nullopt;
}

std::ptrdiff_t File::read_some(size_t offset, size_t size, void* out) const {
  for (;;) {
    const ssize_t got = pread(descriptor_, out, std::min(size, kMaxTransfer), static_cast<off_t>(offset));
    if (got >= 0 || errno != EINTR) return got;
  }
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

const char* const kSeparators = "/";

File open_to_read(const std::string& path) { return File(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); }

File open_folder(const std::string& path) { return File(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }

File open_entry(const File& folder, const std::string& name, bool is_folder) {
  const int kind = is_folder ? O_DIRECTORY : O_NONBLOCK;  // opening a pipe must not block
  return File(openat(folder.descriptor(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | kind));
}

File open_to_append(const std::string& path) { return File(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)); }

File open_log(const std::string& path) {
  return File(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
}

File create_file(const std::string& path) {
  return File(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

std::optional<FileStatus> status_of(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 ? std::optional(status_from(status)) : std::nullopt;
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : "";
}

bool remove_file(const std::string& path) { return unlink(path.c_str()) == 0; }

bool make_folder(const std::string& path) { return mkdir(path.c_str(), 0777) == 0; }

bool remove_folder(const std::string& path) { return rmdir(path.c_str()) == 0; }

bool sync_folder(const std::string& path) {
  const File folder = open_folder(path);
  return folder.is_open() && (fsync(folder.descriptor()) == 0 || errno == EINVAL);
}

bool may_write_into(const std::string& path) { return access(path.c_str(), W_OK | X_OK) == 0; }

std::string make_temporary_folder(const std::string& prefix) {
  std::string path = prefix + "XXXXXX";
  return mkdtemp(path.data()) ? path : "";
}

}  // namespace onnx_train::platform
