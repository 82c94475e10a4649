// A file mapped into memory, read-only. Shared: views keep it alive. A file that another program shortens while it is
// mapped ends the process, as with any mapped file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace onnx_train {

class MappedFile {
 public:
  // Throws Error when the file cannot be read or is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const unsigned char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(std::string path, const unsigned char* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const unsigned char* data_;
  size_t size_;
};

}  // namespace onnx_train
