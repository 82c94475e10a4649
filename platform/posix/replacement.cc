#include "platform/replacement.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "platform/linux/file_systems.h"

namespace onnx_train::platform {

Replacement::~Replacement() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

bool Replacement::create(const std::string& folder, const std::string& name) {
  temporary_ = folder + "/." + name + ".XXXXXX";
  file_ = File(mkostemp(temporary_.data(), O_CLOEXEC));
  if (!file_.is_open()) temporary_.clear();
  return file_.is_open();
}

bool Replacement::take_permissions(const std::string& path) {
  struct stat status = {};
  mode_t mode = 0;
  if (stat(path.c_str(), &status) == 0) {
    mode = status.st_mode & 0777;
  } else {
    const mode_t mask = umask(0);
    umask(mask);
    mode = 0666 & ~mask;
  }
  return fchmod(file_.descriptor(), mode) == 0;
}

bool Replacement::write(const void* data, size_t size) {
  if (!file_.write(data, size)) return false;
  // Starts writing to disk, so that put_in_place waits only for the last blocks. Errors here reappear there.
  constexpr size_t kBatch = size_t{32} << 20;
  waiting_ += size;
  if (waiting_ < kBatch) return true;
  start_writing_to_disk(file_);
  waiting_ = 0;
  return true;
}

bool Replacement::skip(size_t size) {
  ends_in_hole_ = true;
  return lseek(file_.descriptor(), static_cast<off_t>(size), SEEK_CUR) >= 0;
}

bool Replacement::share(const std::string& from) {
  const File source = open_to_read(from);
  if (source.is_open() && share_blocks(source, file_)) return true;
  return unlink(temporary_.c_str()) == 0 && link(from.c_str(), temporary_.c_str()) == 0;
}

bool Replacement::put_in_place(const std::string& path) {
  const off_t end = ends_in_hole_ ? lseek(file_.descriptor(), 0, SEEK_CUR) : 0;
  if (end < 0 || (ends_in_hole_ && ftruncate(file_.descriptor(), end) != 0)) return false;
  if (fsync(file_.descriptor()) != 0 || !file_.close_now()) return false;
  if (rename(temporary_.c_str(), path.c_str()) != 0) return false;
  unlink(temporary_.c_str());  // rename does nothing if both names already refer to one file
  temporary_.clear();
  return true;
}

}  // namespace onnx_train::platform
