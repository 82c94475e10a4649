// Files of the system: an open file, and what is done with files and folders by their names. What fails says why in
// errno, in everything of platform/. A File has one owner and is used by one thread; functions on names by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace onnx_train::platform {

// What the system says of a file.
struct FileStatus {
  bool is_regular = false, is_folder = false;  // neither: a pipe, a device, ...
  uint64_t size = 0;                           // bytes
  uint64_t device = 0, number = 0;             // which file it is, whatever its names are
  uint64_t links = 1;                          // its names
  int64_t modified_ns = 0;
};

// An owned descriptor, closed by the destructor.
class File {
 public:
  explicit File(int descriptor = -1) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File();
  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  // Closes the file now; false if the system reports a delayed write error.
  bool close_now();

  std::optional<FileStatus> status() const;
  // Reads `size` bytes at `offset`; false if the file is too short or reading fails.
  bool read(size_t offset, size_t size, void* out) const;
  // Reads up to `size` bytes at `offset`: their number, 0 at the end, below 0 if reading fails.
  std::ptrdiff_t read_some(size_t offset, size_t size, void* out) const;
  // Writes all bytes at the current position; false on failure.
  bool write(const void* data, size_t size);

 private:
  int descriptor_;
};

// The files are not open if that fails, and are not passed on to programs that this process starts.

extern const char* const kSeparators;  // of folders in a path: "/", and on Windows "\\"

// For reading. Opening a pipe does not block.
File open_to_read(const std::string& path);
// A folder.
File open_folder(const std::string& path);
// For reading: an entry of a folder, itself a folder or not. A link is not followed: errno is ELOOP then, or ENOTDIR
// for a link in the place of a folder.
File open_entry(const File& folder, const std::string& name, bool is_folder);
// For lines at the end of a file that exists.
File open_to_append(const std::string& path);
// The same, for reading, too, and of a file that is made if there is none.
File open_log(const std::string& path);
// A file that is made; EEXIST if there is one.
File create_file(const std::string& path);
// A file without a name, in memory.
File memory_file(const char* what);

// Of the file that a path leads to, through links.
std::optional<FileStatus> status_of(const std::string& path);
// The path with links resolved; "" if there is no such file.
std::string real_path(const std::string& path);
bool remove_file(const std::string& path);

bool make_folder(const std::string& path);
bool remove_folder(const std::string& path);  // an empty one
// Makes the folder's names survive a crash of the machine. True for file systems that do not know of it.
bool sync_folder(const std::string& path);
// Whether this process may make files in the folder.
bool may_write_into(const std::string& path);
// A new folder whose path begins with `prefix` and that other users cannot read; "" if it cannot be made.
std::string make_temporary_folder(const std::string& prefix);

}  // namespace onnx_train::platform
