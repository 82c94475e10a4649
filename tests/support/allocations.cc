#include "tests/support/allocations.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<size_t> count = 0, onednn_count = 0, onednn_largest = 0, primitive_count = 0;
std::atomic<int64_t> onednn_live = 0;

struct Range {
  uintptr_t begin = 0, end = 0;
};

// Where oneDNN's code lies.
Range find_onednn() {
  Range range;
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* found) {
        if (!std::strstr(module->dlpi_name, "libdnnl")) return 0;
        auto& result = *static_cast<Range*>(found);
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const auto& segment = module->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
          result = {module->dlpi_addr + segment.p_vaddr, module->dlpi_addr + segment.p_vaddr + segment.p_memsz};
        }
        return 1;
      },
      &range);
  return range;
}

}  // namespace

namespace onnx_train {

bool is_onednn(const void* caller) {
  static const Range range = find_onednn();
  const auto address = reinterpret_cast<uintptr_t>(caller);
  return range.begin <= address && address < range.end;
}

}  // namespace onnx_train

using onnx_train::is_onednn;

void* operator new(size_t bytes) {
  if (is_onednn(__builtin_return_address(0))) {
    ++onednn_count;
    ++onednn_live;
    size_t largest = onednn_largest;
    while (largest < bytes && !onednn_largest.compare_exchange_weak(largest, bytes)) continue;
  } else {
    ++count;
  }
  if (void* data = std::malloc(bytes ? bytes : 1)) return data;
  throw std::bad_alloc();
}
// Sorting asks for its buffer in this way.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++count;
  return std::malloc(bytes ? bytes : 1);
}
void operator delete(void* data) noexcept {
  if (data && is_onednn(__builtin_return_address(0))) --onednn_live;
  std::free(data);
}
void operator delete(void* data, size_t) noexcept {
  if (data && is_onednn(__builtin_return_address(0))) --onednn_live;
  std::free(data);
}

// Stands in front of the library's function of this name; an enumeration and opaque pointers to it.
extern "C" __attribute__((visibility("default"))) int dnnl_primitive_create(void** primitive, const void* description) {
  ++primitive_count;
  static const auto create =
      reinterpret_cast<decltype(&dnnl_primitive_create)>(dlsym(RTLD_NEXT, "dnnl_primitive_create"));
  return create(primitive, description);
}

namespace onnx_train {

size_t count_allocations() { return count; }
size_t count_onednn_allocations() { return onednn_count; }
size_t live_onednn_allocations() { return static_cast<size_t>(onednn_live); }
size_t largest_onednn_allocation() { return onednn_largest.exchange(0); }
size_t count_primitives() { return primitive_count; }

}  // namespace onnx_train
