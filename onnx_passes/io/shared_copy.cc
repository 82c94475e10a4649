#include "onnx_passes/io/shared_copy.h"

#include <cstdint>
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
  explicit Copy(Tensor of) : source(std::move(of)) {}

  const Tensor source;
  std::once_flag once;
  Tensor numbers;
};

class Copies {
 public:
  std::shared_ptr<const Copy> of(const Tensor& source, DType dtype) {
    const std::shared_ptr<Copy> copy = known(source, dtype);
    // Copies of other tensors may go on meanwhile. A copy that fails is tried again by its next reader.
    std::call_once(copy->once, [&] { copy->numbers = copy_by_blocks(source, dtype); });
    return copy;
  }

 private:
  std::shared_ptr<Copy> known(const Tensor& source, DType dtype) {
    const std::lock_guard lock(mutex_);
    std::erase_if(copies_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Copy>& entry = copies_[{source.stored().data(), source.stored().bytes(), dtype}];
    std::shared_ptr<Copy> copy = entry.lock();
    if (!copy) entry = copy = std::make_shared<Copy>(source);
    return copy;
  }

  std::mutex mutex_;
  std::map<std::tuple<const void*, size_t, DType>, std::weak_ptr<Copy>> copies_;
};

}  // namespace

bool is_aligned(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data()) % kAlignment == 0; }

Tensor shared_copy(const Tensor& numbers, DType dtype) {
  static Copies copies;
  const Tensor& source = numbers.narrow() ? *numbers.narrow() : numbers;
  if (source.dtype() == dtype && !source.packed() && is_aligned(source)) return source;
  const std::shared_ptr<const Copy> copy = copies.of(source, dtype);
  return Tensor(dtype, source.shape(), copy->numbers.data(), copy);
}

}  // namespace onnx_train
