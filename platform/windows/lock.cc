// Locks one byte far beyond the end of a file, since no other process can read locked bytes.
#include "platform/lock.h"

#include <io.h>
#include <windows.h>

namespace onnx_train::platform {
namespace {

constexpr DWORD kFarBehind = 0x7fffffff;

bool try_lock(const File& file) {
  OVERLAPPED place = {};
  place.OffsetHigh = kFarBehind;
  const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(file.descriptor()));
  return LockFileEx(handle, LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &place) ||
         GetLastError() != ERROR_LOCK_VIOLATION;
}

}  // namespace

bool lock_file(const File& file) { return try_lock(file); }

bool is_locked(const File& file) {
  if (!try_lock(file)) return true;
  OVERLAPPED place = {};
  place.OffsetHigh = kFarBehind;
  UnlockFileEx(reinterpret_cast<HANDLE>(_get_osfhandle(file.descriptor())), 0, 1, 0, &place);
  return false;
}

bool lock_folder(const File&) { return true; }  // Windows has none; no training runs there

}  // namespace onnx_train::platform
