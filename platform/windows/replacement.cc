#include "platform/replacement.h"

#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <cerrno>

#include "platform/windows/wide.h"

namespace onnx_train::platform {

Replacement::~Replacement() {
  if (temporary_.empty()) return;
  if (file_.is_open()) file_.close_now();  // an open file keeps its name
  remove_file(temporary_);
}

bool Replacement::create(const std::string& folder, const std::string& name) {
  for (unsigned number = 0; number < 1000; ++number) {
    temporary_ = folder + "/." + name + "." + std::to_string(GetCurrentProcessId()) + "-" + std::to_string(number);
    file_ = create_file(temporary_);
    if (file_.is_open()) return true;
    if (errno != EEXIST) break;
  }
  temporary_.clear();
  return false;
}

// ReplaceFileW would keep those of the file there, but is not one step. A new file inherits those of its folder.
bool Replacement::take_permissions(const std::string&) { return true; }

bool Replacement::write(const void* data, size_t size) { return file_.write(data, size); }

// Windows fills the gap with zeros when something is written after it.
bool Replacement::skip(size_t size) {
  ends_in_hole_ = true;
  return _lseeki64(file_.descriptor(), static_cast<__int64>(size), SEEK_CUR) >= 0;
}

bool Replacement::share(const std::string& from) {
  file_.close_now();
  return remove_file(temporary_) &&
         (CreateHardLinkW(wide(temporary_).c_str(), wide(from).c_str(), nullptr) || set_errno());
}

bool Replacement::put_in_place(const std::string& path) {
  if (file_.is_open()) {
    const __int64 end = ends_in_hole_ ? _lseeki64(file_.descriptor(), 0, SEEK_CUR) : 0;
    if (end < 0 || (ends_in_hole_ && _chsize_s(file_.descriptor(), end) != 0)) return false;
    if (_commit(file_.descriptor()) != 0 || !file_.close_now()) return false;
  }
  if (!MoveFileExW(wide(temporary_).c_str(), wide(path).c_str(), MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
    return set_errno();
  temporary_.clear();
  return true;
}

}  // namespace onnx_train::platform
