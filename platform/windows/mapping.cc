#include "platform/mapping.h"

#include <io.h>
#include <malloc.h>
#include <windows.h>

#include <cerrno>

#include "platform/windows/wide.h"

namespace onnx_train::platform {

size_t page_bytes() {
  SYSTEM_INFO about;
  GetSystemInfo(&about);
  return about.dwPageSize;
}

const void* map_file(const File& file, size_t size) {
  const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(file.descriptor()));
  const HANDLE mapping = CreateFileMappingW(handle, nullptr, PAGE_READONLY, static_cast<DWORD>(size >> 32),
                                            static_cast<DWORD>(size), nullptr);
  const void* const data = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, size) : nullptr;
  if (!data) set_errno();
  if (mapping) CloseHandle(mapping);  // the view keeps it
  return data;
}

// To unlock what is not locked takes pages out of the working set.
void release_mapped(const void* data, size_t size) { VirtualUnlock(const_cast<void*>(data), size); }

void* map_zeros(size_t bytes, bool) {
  void* const data = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (!data) set_errno();
  return data;
}

void prefer_huge_pages(void*, size_t) {}  // they take a privilege

// A view begins at a multiple of 64 KiB and has no fixed place beside others.
const void* map_repeated(const File&, size_t, size_t, size_t) {
  errno = ENOSYS;
  return nullptr;
}

void unmap(const void* data, size_t) {
  if (!UnmapViewOfFile(data)) VirtualFree(const_cast<void*>(data), 0, MEM_RELEASE);
}

void* allocate_aligned(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }
void free_aligned(void* data) { _aligned_free(data); }

}  // namespace onnx_train::platform
