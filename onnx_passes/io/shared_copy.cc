#include "onnx_passes/io/shared_copy.h"

#include <cstring>
#include <map>
#include <mutex>

#include "onnx_passes/io/mapped_file.h"

namespace onnx_train {
namespace {

Tensor copy_by_blocks(const Tensor& source, DType dtype) {
  Tensor copy(dtype, source.shape());
  auto* next = static_cast<char*>(copy.data());
  for_each_block(source, [&](const void* data, size_t bytes) {
    if (source.dtype() == dtype) {
      std::memcpy(next, data, bytes);
      next += bytes;
      return;
    }
    const auto elements = static_cast<int64_t>(bytes / size_of(source.dtype()));
    const Tensor block = Tensor(source.dtype(), {elements}, data, nullptr).cast(dtype);
    std::memcpy(next, block.data(), block.bytes());
    next += block.bytes();
  });
  return copy;
}

// A copy keeps its source, so that the source's address names no other numbers.
struct Copy {
  Tensor source, numbers;
};

class Copies {
 public:
  std::shared_ptr<const Copy> of(const Tensor& source, DType dtype) {
    const std::lock_guard lock(mutex_);
    std::erase_if(copies_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const Copy>& known = copies_[{source.data(), source.bytes(), dtype}];
    std::shared_ptr<const Copy> copy = known.lock();
    if (!copy) known = copy = std::make_shared<const Copy>(Copy{source, copy_by_blocks(source, dtype)});
    return copy;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<const void*, size_t, DType>, std::weak_ptr<const Copy>> copies_;
};

}  // namespace

Tensor shared_copy(const Tensor& source, DType dtype) {
  static Copies copies;
  const std::shared_ptr<const Copy> copy = copies.of(source, dtype);
  return Tensor(dtype, source.shape(), copy->numbers.data(), copy);
}

}  // namespace onnx_train
