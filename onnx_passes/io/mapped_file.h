// A read-only memory mapping of a file. Views share it and keep it alive. The file must not be modified or truncated
// while it is mapped: `check_unchanged`, and every full read of contents, detects a modification; access to a page that
// no longer exists raises SIGBUS, which the onnx-train command reports as an error (tools/interrupt.h). Files that are
// replaced by renaming, as this program writes them, keep their old contents for existing mappings. Any thread may
// read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "onnx_passes/io/file.h"

namespace onnx_train {

class Tensor;

class MappedFile {
 public:
  // Throws Error if the file cannot be read or is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  // The same for an open regular file; `path` is used in messages and by `check_unchanged`.
  static std::shared_ptr<const MappedFile> map(const File& file, const std::string& path, bool is_base = false);
  MappedFile(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const unsigned char* data() const { return data_; }
  size_t size() const { return size_; }

  // Whether it is the base of a checkpoint (base_files.h), and not a file of the model itself.
  bool is_base() const { return is_base_; }
  // Whether the path still names the file that is mapped, and nothing has been written to it.
  bool is_in_place() const;

  // Throws Error if the mapped file has been written to since.
  void check_unchanged() const;

 private:
  MappedFile() = default;

  std::string path_;
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  int64_t modified_ns_ = 0;
  bool is_base_ = false;
};

// Where contents are in a file, as long as they are mapped.
struct MappedPlace {
  std::string path;
  size_t offset = 0, file_bytes = 0;
  bool is_base = false, is_in_place = false;  // MappedFile
};
// Nothing for memory that is not a mapped file.
std::optional<MappedPlace> mapped_place(const void* data, size_t bytes);

// For memory that is not a mapped file, the following three functions do nothing.
bool is_mapped(const void* data, size_t bytes);
// MappedFile::check_unchanged.
void check_unchanged(const void* data, size_t bytes);
// Releases the pages from this process's memory; the system still caches them and maps them again when they are read.
void release_pages(const void* data, size_t bytes);
void release_pages(const Tensor& tensor);  // those that it is stored in

// Reads large contents once: calls f(data, bytes) for each block in order and releases its pages. Blocks of a
// tensor that is stored in fewer bits are made one at a time. Throws Error if the file has been modified.
void for_each_block(const Tensor& contents, const std::function<void(const void* data, size_t bytes)>& f);

}  // namespace onnx_train
