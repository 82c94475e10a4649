// A file mapped into memory, read-only. Shared: views keep it alive. The file must not be changed or shortened while it
// is mapped: `check_unchanged` finds a change, and so does whatever reads contents whole; a page that is no longer
// there raises SIGBUS, which the onnx-train command reports as an error (tools/interrupt.h). Files that are replaced by
// renaming, as this program writes its own, keep their old contents for those who have mapped them. Any thread may
// read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "onnx_passes/ir/file.h"

namespace onnx_train {

class MappedFile {
 public:
  // Throws Error when the file cannot be read or is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  // The same for a regular file that is open already; `path` is for messages and for `check_unchanged`.
  static std::shared_ptr<const MappedFile> map(const File& file, const std::string& path);
  MappedFile(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const unsigned char* data() const { return data_; }
  size_t size() const { return size_; }

  // Throws Error when the file that is mapped has been written to since.
  void check_unchanged() const;

 private:
  MappedFile() = default;

  std::string path_;
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  int64_t modified_ns_ = 0;
};

// Of memory that is no mapped file these three know and do nothing.
bool is_mapped(const void* data, size_t bytes);
// MappedFile::check_unchanged.
void check_unchanged(const void* data, size_t bytes);
// Takes the pages out of this process's memory: the system still caches them, and they come back when they are read.
void release_pages(const void* data, size_t bytes);

// Reads large contents once: calls f(data, bytes) for one block after the other, and releases each block's pages.
// Throws Error when their file was changed.
template <typename Contents, typename F>
void for_each_block(const Contents& contents, const F& f) {
  constexpr size_t kBlock = size_t{4} << 20;
  const auto* data = static_cast<const char*>(contents.data());
  for (size_t at = 0; at < contents.bytes(); at += kBlock) {
    const size_t bytes = std::min(kBlock, contents.bytes() - at);
    check_unchanged(data + at, bytes);  // pages that are gone must not be read
    f(data + at, bytes);
    release_pages(data + at, bytes);
  }
  check_unchanged(data, contents.bytes());
}

}  // namespace onnx_train
