#include "platform/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace onnx_train::platform {
namespace {

void* or_null(void* data) { return data == MAP_FAILED ? nullptr : data; }

}  // namespace

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

const void* map_file(const File& file, size_t size) {
  return or_null(mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0));
}

void release_mapped(const void* data, size_t size) {
  const auto page = static_cast<uintptr_t>(page_bytes());
  // Whole pages only; the first and last may be read again for their other parts.
  const uintptr_t first = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + size + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void* map_zeros(size_t bytes, bool reserved) {
  const int promise = reserved ? 0 : MAP_NORESERVE;
  return or_null(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | promise, -1, 0));
}

void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

const void* map_repeated(const File& block, size_t block_bytes, size_t from, size_t bytes) {
  void* const data = or_null(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (size_t at = 0; data && at < bytes; from = 0) {
    const size_t length = std::min(bytes - at, block_bytes - from);
    if (mmap(static_cast<char*>(data) + at, length, PROT_READ, MAP_SHARED | MAP_FIXED, block.descriptor(),
             static_cast<off_t>(from)) == MAP_FAILED) {
      unmap(data, bytes);
      return nullptr;
    }
    at += length;
  }
  return data;
}

void unmap(const void* data, size_t bytes) { munmap(const_cast<void*>(data), bytes); }

void* allocate_aligned(size_t alignment, size_t bytes) {
  void* data = nullptr;  // aligned_alloc requires a size that is a multiple of the alignment
  return posix_memalign(&data, alignment, bytes) == 0 ? data : nullptr;
}
void free_aligned(void* data) { std::free(data); }

}  // namespace onnx_train::platform
