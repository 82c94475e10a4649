// An owned file descriptor, closed by the destructor, and reading and writing through it. One owner; one thread. Then
// what is done with files by their names: any thread.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

namespace onnx_train {

class File {
 public:
  explicit File(int descriptor = -1) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  // Closes the file now; false if the system reports a delayed write error.
  bool close_now() { return close(std::exchange(descriptor_, -1)) == 0; }

  // Reads `size` bytes at `offset`; false if the file is too short or reading fails.
  bool read(size_t offset, size_t size, void* out) const;
  // Writes all bytes at the current position; false on failure, with errno set.
  bool write(const void* data, size_t size);

 private:
  int descriptor_;
};

// The bytes of a regular file. Throws Error of the code kFile that names it and the cause.
std::string read_file(const std::string& path);

// Whether something has this path. Throws Error where the system cannot tell: what takes an unreadable file for a
// missing one writes over it.
bool path_exists(const std::string& path);
// Whether a folder has; the same.
bool folder_exists(const std::string& path);

// Removes a file. None is fine; throws Error where there is one that stays.
void remove_file(const std::string& path);

// The folder of a path ("." if it has none) and the file name.
std::pair<std::string, std::string> split_path(const std::string& path);

}  // namespace onnx_train
