#include "onnx_passes/io/absent_data.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/types.h"
#include "platform/mapping.h"

namespace onnx_train {
namespace {

std::atomic<bool> is_allowed{false};
std::mutex absent_mutex;
AbsentData all_absent;

// A prime, so that weights whose lengths are powers of two begin at different pages of the block.
constexpr size_t kPages = 16381;

// Each 16 bits are a float16 between 1 and 2 or its negative, and as finite as bfloat16 and as the upper half of a
// float32 or float64.
std::vector<uint16_t> numbers_of_absent() {
  std::vector<uint16_t> numbers(kPages * platform::page_bytes() / sizeof(uint16_t));
  uint64_t state = 0x9e3779b97f4a7c15;
  for (uint16_t& number : numbers) {
    state = state * 6364136223846793005 + 1442695040888963407;
    number = static_cast<uint16_t>(0x3c00 | (state >> 33 & 0x83ff));
  }
  return numbers;
}

const File& block_of_absent() {
  static const File file = [] {
    File memory = platform::memory_file("absent weights");
    const std::vector<uint16_t> all = numbers_of_absent();
    if (!memory.is_open() || !memory.write(all.data(), all.size() * sizeof(uint16_t)))
      fail("no memory in the place of absent weights: ", std::strerror(errno));
    return memory;
  }();
  return file;
}

}  // namespace

void allow_absent_data(bool allow) { is_allowed = allow; }
bool allows_absent_data() { return is_allowed; }

AbsentData absent_data() {
  const std::lock_guard lock(absent_mutex);
  return all_absent;
}

std::shared_ptr<const void> stand_in(const std::string& tensor, const std::string& file, DType dtype, size_t bytes) {
  if (!is_float(dtype) || size_of(dtype) < 2) {
    fail_as(ErrorCode::kExternalData, "tensor '", tensor, "': its data file '", file,
            "' is absent, which only floats of 16 bits and more may be: integers decide shapes and places");
  }
  size_t number = 0;
  {
    const std::lock_guard lock(absent_mutex);
    number = all_absent.tensors++;
    all_absent.bytes += bytes;
    if (all_absent.file.empty()) all_absent.file = file;
  }
  const size_t page = platform::page_bytes(), size = std::max<size_t>(1, (bytes + page - 1) / page) * page;
  const void* const data =
      platform::map_repeated(block_of_absent(), kPages * page, number * 7919 % kPages * page, size);
  if (!data) fail("tensor '", tensor, "': cannot map ", size, " bytes: ", std::strerror(errno));
  return {data, [size](const void* p) { platform::unmap(p, size); }};
}

}  // namespace onnx_train
