// Memory that comes from the system by pages: files that are mapped, and zeros; and aligned memory. Any thread.
// Functions return null with errno set.
#pragma once

#include <cstddef>

#include "platform/file.h"

namespace onnx_train::platform {

size_t page_bytes();

// The first `size` bytes of a file, which is not empty, for reading. What others write into the file may show.
const void* map_file(const File& file, size_t size);
// Takes pages that hold these bytes of a mapped file out of this process's memory; the system caches them and maps them
// again when they are read.
void release_mapped(const void* data, size_t size);

// `bytes` zeros, which take no memory before they are written. Without `reserved` the system may promise more than it
// has.
void* map_zeros(size_t bytes, bool reserved = true);
// Says that whole pages of 2 MiB are wanted here, if the system has such.
void prefer_huge_pages(void* data, size_t bytes);

// `bytes` for reading that are the block's, from its byte `from` on and again from its start: a huge weight of few
// pages. `block_bytes`, `from` and `bytes` are whole pages.
const void* map_repeated(const File& block, size_t block_bytes, size_t from, size_t bytes);

// Of all three.
void unmap(const void* data, size_t bytes);

// Memory of the heap at a multiple of `alignment`, a power of two, for free_aligned.
void* allocate_aligned(size_t alignment, size_t bytes);
void free_aligned(void* data);

}  // namespace onnx_train::platform
