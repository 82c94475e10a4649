#include "platform/file.h"

#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "platform/windows/wide.h"

namespace onnx_train::platform {
namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;
// As on POSIX a file may be read, renamed and removed while it is open.
constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

HANDLE handle_of(const File& file) { return reinterpret_cast<HANDLE>(_get_osfhandle(file.descriptor())); }

// Windows says of FILE/NAME that there is no such path, where POSIX says that FILE is no folder.
bool is_below_file(std::wstring path) {
  for (size_t end = 0; (end = path.find_last_of(L"/\\")) != std::wstring::npos;) {
    path.resize(end);
    const DWORD attributes = GetFileAttributesW(path.c_str());
    if (attributes != INVALID_FILE_ATTRIBUTES) return (attributes & FILE_ATTRIBUTE_DIRECTORY) == 0;
  }
  return false;
}

// `flags` are those of the descriptor: O_APPEND.
File open_handle(const std::wstring& path, DWORD access, DWORD how, DWORD attributes, int flags = 0) {
  const HANDLE handle = CreateFileW(path.c_str(), access, kShareAll, nullptr, how, attributes, nullptr);
  if (handle == INVALID_HANDLE_VALUE) {
    const bool has_no_path = GetLastError() == ERROR_PATH_NOT_FOUND;
    set_errno();
    if (has_no_path && is_below_file(path)) errno = ENOTDIR;
    return File();
  }
  return File(_open_osfhandle(reinterpret_cast<intptr_t>(handle), flags | O_BINARY | O_NOINHERIT));
}

// A folder opens with backup semantics alone, and a file in the same way.
File open_existing(const std::wstring& path, DWORD more = 0) {
  return open_handle(path, GENERIC_READ, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS | more);
}

std::optional<FileStatus> status_from(HANDLE handle) {
  FileStatus status;
  BY_HANDLE_FILE_INFORMATION about;
  if (GetFileType(handle) != FILE_TYPE_DISK) return status;
  if (!GetFileInformationByHandle(handle, &about)) {
    set_errno();
    return std::nullopt;
  }
  const auto joined = [](DWORD high, DWORD low) { return uint64_t{high} << 32 | low; };
  status.is_folder = (about.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
  status.is_regular = !status.is_folder;
  status.size = joined(about.nFileSizeHigh, about.nFileSizeLow);
  status.device = about.dwVolumeSerialNumber;
  status.number = joined(about.nFileIndexHigh, about.nFileIndexLow);
  status.links = about.nNumberOfLinks;
  status.modified_ns =
      static_cast<int64_t>(joined(about.ftLastWriteTime.dwHighDateTime, about.ftLastWriteTime.dwLowDateTime)) * 100;
  return status;
}

// The path of an open file or folder; "" if the system does not tell.
std::wstring path_of(HANDLE handle) {
  std::wstring path(GetFinalPathNameByHandleW(handle, nullptr, 0, FILE_NAME_NORMALIZED), L'\0');
  path.resize(GetFinalPathNameByHandleW(handle, path.data(), static_cast<DWORD>(path.size()), FILE_NAME_NORMALIZED));
  return path;
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) _close(descriptor_);
}

bool File::close_now() { return _close(std::exchange(descriptor_, -1)) == 0; }

std::optional<FileStatus> File::status() const { return status_from(handle_of(*this)); }

std::ptrdiff_t File::read_some(size_t offset, size_t size, void* out) const {
  OVERLAPPED place = {};
  place.Offset = static_cast<DWORD>(offset);
  place.OffsetHigh = static_cast<DWORD>(offset >> 32);
  DWORD got = 0;
  if (ReadFile(handle_of(*this), out, static_cast<DWORD>(std::min(size, kMaxTransfer)), &got, &place)) return got;
  if (GetLastError() == ERROR_HANDLE_EOF) return 0;
  set_errno();
  return -1;
}

bool File::write(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const int put = _write(descriptor_, bytes, static_cast<unsigned>(std::min(size, kMaxTransfer)));
    if (put < 0) return false;
    bytes += put;
    size -= static_cast<size_t>(put);
  }
  return true;
}

const char* const kSeparators = "/\\";

File open_to_read(const std::string& path) { return open_existing(wide(path)); }

File open_folder(const std::string& path) {
  File folder = open_existing(wide(path));
  if (!folder.is_open()) return folder;
  const auto status = folder.status();
  if (status && status->is_folder) return folder;
  errno = ENOTDIR;
  return File();
}

// Links and junctions are reparse points, which are opened themselves here.
File open_entry(const File& folder, const std::string& name, bool is_folder) {
  File entry = open_existing(path_of(handle_of(folder)) + L"\\" + wide(name), FILE_FLAG_OPEN_REPARSE_POINT);
  if (!entry.is_open()) return entry;
  FILE_ATTRIBUTE_TAG_INFO about = {};
  GetFileInformationByHandleEx(handle_of(entry), FileAttributeTagInfo, &about, sizeof about);
  const bool is_link = (about.FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0;
  if (!is_link && (!is_folder || (about.FileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0)) return entry;
  errno = is_link ? ELOOP : ENOTDIR;
  return File();
}

File open_to_append(const std::string& path) {
  return open_handle(wide(path), FILE_APPEND_DATA, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, O_APPEND);
}

File open_log(const std::string& path) {
  return open_handle(wide(path), GENERIC_READ | FILE_APPEND_DATA, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL, O_APPEND);
}

File create_file(const std::string& path) {
  return open_handle(wide(path), GENERIC_WRITE, CREATE_NEW, FILE_ATTRIBUTE_NORMAL);
}

File memory_file(const char*) {
  wchar_t folder[MAX_PATH + 1], path[MAX_PATH + 1];
  if (GetTempPathW(MAX_PATH, folder) == 0 || GetTempFileNameW(folder, L"otr", 0, path) == 0) {
    set_errno();
    return File();
  }
  return open_handle(path, GENERIC_READ | GENERIC_WRITE | DELETE, CREATE_ALWAYS,
                     FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE);
}

std::optional<FileStatus> status_of(const std::string& path) {
  const File file = open_handle(wide(path), FILE_READ_ATTRIBUTES, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS);
  return file.is_open() ? file.status() : std::nullopt;
}

std::string real_path(const std::string& path) {
  const File file = open_handle(wide(path), FILE_READ_ATTRIBUTES, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS);
  if (!file.is_open()) return "";
  std::string real = narrow(path_of(handle_of(file)));
  if (real.starts_with("\\\\?\\UNC\\")) real.replace(0, 7, "\\");  // of a share: \\server\share
  if (real.starts_with("\\\\?\\")) real.erase(0, 4);
  std::replace(real.begin(), real.end(), '\\', '/');
  return real;
}

bool remove_file(const std::string& path) { return DeleteFileW(wide(path).c_str()) || set_errno(); }

bool make_folder(const std::string& path) { return CreateDirectoryW(wide(path).c_str(), nullptr) || set_errno(); }

bool remove_folder(const std::string& path) { return RemoveDirectoryW(wide(path).c_str()) || set_errno(); }

// NTFS keeps names in its journal; a folder cannot be flushed.
bool sync_folder(const std::string&) { return true; }

bool may_write_into(const std::string& path) {
  return open_handle(wide(path), FILE_ADD_FILE, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS).is_open();
}

std::string make_temporary_folder(const std::string& prefix) {
  for (unsigned number = 0; number < 1000; ++number) {
    const std::string path = prefix + std::to_string(GetCurrentProcessId()) + "-" + std::to_string(number);
    if (make_folder(path)) return path;
    if (errno != EEXIST) break;
  }
  return "";
}

}  // namespace onnx_train::platform
