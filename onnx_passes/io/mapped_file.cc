#include "onnx_passes/io/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/tensor.h"
#include "platform/mapping.h"

namespace onnx_train {
namespace {

// All mappings of this process, by first byte.
struct Maps {
  std::mutex mutex;
  std::map<uintptr_t, const MappedFile*> by_address;

  // The mapping that contains these bytes; null if there is none. The caller holds the lock.
  const MappedFile* find(const void* data, size_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const auto after = by_address.upper_bound(begin);
    if (bytes == 0 || after == by_address.begin()) return nullptr;
    const auto& [first, file] = *std::prev(after);
    return begin + bytes <= first + file->size() ? file : nullptr;
  }
};

Maps& maps() {
  static auto* all = new Maps;  // never destroyed: views may outlive static objects
  return *all;
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const File file = platform::open_to_read(path);
  if (!file.is_open()) fail_as(ErrorCode::kFile, "cannot read ", path, ": ", std::strerror(errno));
  return map(file, path);
}

std::shared_ptr<const MappedFile> MappedFile::map(const File& file, const std::string& path, bool is_base) {
  const std::optional<platform::FileStatus> status = file.status();
  if (!status || !status->is_regular) fail_as(ErrorCode::kFile, path, " is not a regular file");
  const std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  mapped->is_base_ = is_base;
  mapped->device_ = status->device;
  mapped->inode_ = status->number;
  mapped->modified_ns_ = status->modified_ns;
  if (status->size == 0) return mapped;
  const auto size = static_cast<size_t>(status->size);
  const void* const data = platform::map_file(file, size);
  if (!data) fail_as(ErrorCode::kFile, "cannot map ", path, ": ", std::strerror(errno));
  mapped->data_ = static_cast<const unsigned char*>(data);
  mapped->size_ = size;
  const std::lock_guard lock(maps().mutex);
  maps().by_address.emplace(reinterpret_cast<uintptr_t>(data), mapped.get());
  return mapped;
}

MappedFile::~MappedFile() {
  if (!data_) return;
  {
    const std::lock_guard lock(maps().mutex);
    maps().by_address.erase(reinterpret_cast<uintptr_t>(data_));
  }
  platform::unmap(data_, size_);
}

bool MappedFile::is_in_place() const {
  const std::optional<platform::FileStatus> status = platform::status_of(path_);
  return status && status->device == device_ && status->number == inode_ && status->modified_ns == modified_ns_ &&
         status->size == size_;
}

void MappedFile::check_unchanged() const {
  const std::optional<platform::FileStatus> status = platform::status_of(path_);
  // A replaced or deleted file: the mapped one is unchanged and has only lost its name.
  if (!status || status->device != device_ || status->number != inode_) return;
  if (status->modified_ns == modified_ns_ && status->size == size_) return;
  fail_as(ErrorCode::kFile, path_,
          " was changed while it was in use; start again, and put new contents into place by renaming a new file");
}

bool is_mapped(const void* data, size_t bytes) {
  const std::lock_guard lock(maps().mutex);
  return maps().find(data, bytes) != nullptr;
}

std::optional<MappedPlace> mapped_place(const void* data, size_t bytes) {
  const std::lock_guard lock(maps().mutex);
  const MappedFile* file = maps().find(data, bytes);
  if (!file) return std::nullopt;
  const auto offset = static_cast<size_t>(static_cast<const unsigned char*>(data) - file->data());
  return MappedPlace{file->path(), offset, file->size(), file->is_base(), file->is_in_place()};
}

void check_unchanged(const void* data, size_t bytes) {
  const std::lock_guard lock(maps().mutex);
  if (const MappedFile* file = maps().find(data, bytes)) file->check_unchanged();
}

void release_pages(const void* data, size_t bytes) {
  const std::lock_guard lock(maps().mutex);
  if (maps().find(data, bytes)) platform::release_mapped(data, bytes);
}

void release_pages(const Tensor& tensor) {
  const Tensor& stored = tensor.stored();
  release_pages(stored.data(), stored.bytes());
}

void for_each_block(const Tensor& contents, const std::function<void(const void* data, size_t bytes)>& f) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  const Tensor& stored = contents.stored();
  for (int64_t at = 0; at < contents.size(); at += kBlock) {
    const Tensor block = contents.part(at, std::min(kBlock, contents.size() - at));
    const void* data = block.stored().data();
    const size_t bytes = block.stored().bytes();
    check_unchanged(data, bytes);  // pages that no longer exist must not be read
    f(block.data(), block.bytes());
    release_pages(data, bytes);
  }
  check_unchanged(stored.data(), stored.bytes());
}

}  // namespace onnx_train
