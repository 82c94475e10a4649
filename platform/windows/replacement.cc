#include "platform/replacement.h"

#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <cerrno>

#include "platform/windows/wide.h"

namespace onnx_train::platform {
namespace {

bool rename(const std::wstring& from, const std::wstring& to, DWORD more = 0) {
  return MoveFileExW(from.c_str(), to.c_str(), MOVEFILE_WRITE_THROUGH | more);
}

// Windows replaces no file that a process has open or mapped, as `build m.onnx -o m.onnx` has the model that it reads.
// But it renames one, if those who opened it share it as files of ours are shared. Between the two renamings there is
// no file of the name `to`.
bool replace_used(const std::wstring& from, const std::wstring& to) {
  const DWORD error = GetLastError(), attributes = GetFileAttributesW(to.c_str());
  const std::wstring aside = from + L".old";
  constexpr DWORD kNotOurs = FILE_ATTRIBUTE_READONLY | FILE_ATTRIBUTE_DIRECTORY;
  if (attributes == INVALID_FILE_ATTRIBUTES || (attributes & kNotOurs) != 0 || !rename(to, aside)) {
    SetLastError(error);
    return false;
  }
  if (!rename(from, to)) {
    const DWORD reason = GetLastError();
    rename(aside, to);
    SetLastError(reason);
    return false;
  }
  // It is removed when this process ends, which closes the handle after those who map the file are gone.
  CreateFileW(aside.c_str(), DELETE, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING,
              FILE_FLAG_DELETE_ON_CLOSE, nullptr);
  return true;
}

}  // namespace

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
  const std::wstring from = wide(temporary_), to = wide(path);
  if (!rename(from, to, MOVEFILE_REPLACE_EXISTING) && !replace_used(from, to)) return set_errno();
  temporary_.clear();
  return true;
}

}  // namespace onnx_train::platform
