// A library for LD_PRELOAD: lets one call of the system on files below a folder fail, once. Calls are counted from 0,
// in the order in which the process makes them. The environment says which:
//
//   FAILING_CALLS_BELOW   the folder
//   FAILING_CALLS_NUMBER  the call; none or -1: no call fails
//   FAILING_CALLS_AS      EIO, ENOSPC: the call fails so, where it can; "short": read and write take half of what they
//   can FAILING_CALLS_LOG     a file that receives a line for each counted call: NUMBER NAME PATH
//
// Pages of mapped files are not calls: reading them is not covered.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

const char* setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value ? value : otherwise;
}

// Without memory of its own, which an allocator may open files for.
struct Settings {
  std::string_view below = setting("FAILING_CALLS_BELOW", "");
  long number = std::atol(setting("FAILING_CALLS_NUMBER", "-1"));
  std::string_view as = setting("FAILING_CALLS_AS", "EIO");
  int log = -1;

  Settings() {
    const char* const path = setting("FAILING_CALLS_LOG", "");
    if (*path) log = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600));
  }
};

const Settings& settings() {
  static const Settings settings;
  return settings;
}

enum class Outcome { kAsIs, kFails, kShort };

// What becomes of this call. `writes`: the file system may have no room for it. `bytes`: it transfers some.
Outcome next_call(const char* name, std::string_view path, bool writes, bool bytes) {
  static std::atomic<long> calls{0};
  const Settings& s = settings();
  if (s.below.empty() || !path.starts_with(s.below)) return Outcome::kAsIs;
  const long number = calls++;
  if (s.log >= 0) {
    std::array<char, PATH_MAX + 64> line;
    const int size = std::snprintf(line.data(), line.size(), "%ld %s %.*s\n", number, name,
                                   static_cast<int>(path.size()), path.data());
    syscall(SYS_write, s.log, line.data(), std::min<size_t>(static_cast<size_t>(size), line.size() - 1));
  }
  if (number != s.number) return Outcome::kAsIs;
  if (s.as == "short") return bytes ? Outcome::kShort : Outcome::kAsIs;
  if (s.as == "ENOSPC" && !writes) return Outcome::kAsIs;
  errno = s.as == "ENOSPC" ? ENOSPC : EIO;
  return Outcome::kFails;
}

// Whether the call fails, with errno set.
bool fails(const char* name, const char* path, bool writes = false) {
  const int before = errno;
  if (next_call(name, path ? path : "", writes, false) == Outcome::kFails) return true;
  errno = before;
  return false;
}

Outcome outcome(const char* name, int descriptor, bool writes, bool bytes) {
  const int before = errno;
  std::array<char, PATH_MAX> path;
  std::array<char, 32> link;
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  const long size = syscall(SYS_readlinkat, AT_FDCWD, link.data(), path.data(), path.size());
  const Outcome found = next_call(name, {path.data(), size > 0 ? static_cast<size_t>(size) : 0}, writes, bytes);
  if (found != Outcome::kFails) errno = before;
  return found;
}

bool fails(const char* name, int descriptor, bool writes = false) {
  return outcome(name, descriptor, writes, false) == Outcome::kFails;
}

template <typename F>
F* real(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list arguments) { return flags & O_CREAT ? va_arg(arguments, mode_t) : 0; }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return fails("open", path, flags & O_CREAT) ? -1 : real<int(const char*, int, ...)>("open")(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  if (path[0] == '/' ? fails("openat", path) : folder >= 0 && fails("openat", folder)) return -1;
  return real<int(int, const char*, int, ...)>("openat")(folder, path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  return fails("fopen", path, mode[0] != 'r') ? nullptr : real<FILE*(const char*, const char*)>("fopen")(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  return fails("fopen", path, mode[0] != 'r') ? nullptr : real<FILE*(const char*, const char*)>("fopen64")(path, mode);
}
size_t fwrite(const void* data, size_t size, size_t count, FILE* file) {
  if (fails("fwrite", fileno(file), true)) return 0;
  return real<size_t(const void*, size_t, size_t, FILE*)>("fwrite")(data, size, count, file);
}
int fflush(FILE* file) {
  if (file && fails("fflush", fileno(file), true)) return EOF;
  return real<int(FILE*)>("fflush")(file);
}

int mkostemp(char* pattern, int flags) {
  return fails("mkostemp", pattern, true) ? -1 : real<int(char*, int)>("mkostemp")(pattern, flags);
}

ssize_t read(int descriptor, void* data, size_t bytes) {
  const Outcome what = outcome("read", descriptor, false, true);
  if (what == Outcome::kFails) return -1;
  return real<ssize_t(int, void*, size_t)>("read")(descriptor, data, what == Outcome::kShort ? (bytes + 1) / 2 : bytes);
}
ssize_t pread(int descriptor, void* data, size_t bytes, off_t at) {
  const Outcome what = outcome("pread", descriptor, false, true);
  if (what == Outcome::kFails) return -1;
  return real<ssize_t(int, void*, size_t, off_t)>("pread")(descriptor, data,
                                                           what == Outcome::kShort ? (bytes + 1) / 2 : bytes, at);
}
ssize_t write(int descriptor, const void* data, size_t bytes) {
  const Outcome what = outcome("write", descriptor, true, true);
  if (what == Outcome::kFails) return -1;
  return real<ssize_t(int, const void*, size_t)>("write")(descriptor, data,
                                                          what == Outcome::kShort ? (bytes + 1) / 2 : bytes);
}
off_t lseek(int descriptor, off_t at, int from) {
  return fails("lseek", descriptor) ? -1 : real<off_t(int, off_t, int)>("lseek")(descriptor, at, from);
}
int fsync(int descriptor) { return fails("fsync", descriptor, true) ? -1 : real<int(int)>("fsync")(descriptor); }
int ftruncate(int descriptor, off_t bytes) {
  return fails("ftruncate", descriptor, true) ? -1 : real<int(int, off_t)>("ftruncate")(descriptor, bytes);
}
int sync_file_range(int descriptor, off64_t at, off64_t bytes, unsigned flags) {
  if (fails("sync_file_range", descriptor, true)) return -1;
  return real<int(int, off64_t, off64_t, unsigned)>("sync_file_range")(descriptor, at, bytes, flags);
}
// A descriptor is closed also where the system says that something is wrong.
int close(int descriptor) {
  const bool says_so = fails("close", descriptor, true);
  const int status = real<int(int)>("close")(descriptor);
  if (says_so) errno = settings().as == "ENOSPC" ? ENOSPC : EIO;
  return says_so ? -1 : status;
}
int fchmod(int descriptor, mode_t mode) {
  return fails("fchmod", descriptor) ? -1 : real<int(int, mode_t)>("fchmod")(descriptor, mode);
}
int fcntl(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return fails("fcntl", descriptor) ? -1 : real<int(int, int, ...)>("fcntl")(descriptor, command, argument);
}
int flock(int descriptor, int operation) {
  return fails("flock", descriptor) ? -1 : real<int(int, int)>("flock")(descriptor, operation);
}
int ioctl(int descriptor, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return fails("ioctl", descriptor) ? -1 : real<int(int, unsigned long, ...)>("ioctl")(descriptor, request, argument);
}
void* mmap(void* address, size_t bytes, int protection, int flags, int descriptor, off_t at) {
  if (descriptor >= 0 && fails("mmap", descriptor)) return MAP_FAILED;
  return real<void*(void*, size_t, int, int, int, off_t)>("mmap")(address, bytes, protection, flags, descriptor, at);
}

int stat(const char* path, struct stat* status) {
  return fails("stat", path) ? -1 : real<int(const char*, struct stat*)>("stat")(path, status);
}
int lstat(const char* path, struct stat* status) {
  return fails("lstat", path) ? -1 : real<int(const char*, struct stat*)>("lstat")(path, status);
}
int fstat(int descriptor, struct stat* status) {
  return fails("fstat", descriptor) ? -1 : real<int(int, struct stat*)>("fstat")(descriptor, status);
}
int fstat64(int descriptor, struct stat64* status) {
  return fails("fstat", descriptor) ? -1 : real<int(int, struct stat64*)>("fstat64")(descriptor, status);
}
dirent* readdir(DIR* folder) {
  return fails("readdir", dirfd(folder)) ? nullptr : real<dirent*(DIR*)>("readdir")(folder);
}
int access(const char* path, int mode) {
  return fails("access", path) ? -1 : real<int(const char*, int)>("access")(path, mode);
}
int rename(const char* from, const char* to) {
  return fails("rename", to, true) ? -1 : real<int(const char*, const char*)>("rename")(from, to);
}
int link(const char* from, const char* to) {
  return fails("link", to, true) ? -1 : real<int(const char*, const char*)>("link")(from, to);
}
int unlink(const char* path) { return fails("unlink", path) ? -1 : real<int(const char*)>("unlink")(path); }
int remove(const char* path) { return fails("remove", path) ? -1 : real<int(const char*)>("remove")(path); }
int mkdir(const char* path, mode_t mode) {
  return fails("mkdir", path, true) ? -1 : real<int(const char*, mode_t)>("mkdir")(path, mode);
}

}  // extern "C"
