// Memory of the device that the host plays: its addresses, and when the host may access them. One thread at a time.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(bytes)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(bytes)
#endif

namespace gpu_host {

#ifdef __SANITIZE_THREAD__
constexpr size_t kSpace = size_t{1} << 34;  // bytes of addresses; the sanitizer leaves no more
#else
constexpr size_t kSpace = size_t{1} << 38;
#endif
constexpr size_t kPage = 4096, kLargePage = size_t{2} << 20;
constexpr size_t kAddressAlignment = 256;  // alignment of cudaMalloc

// Device memory: 4 GiB, or $GPU_HOST_MEMORY bytes; plans for more memory than this machine has can be made and read.
inline size_t memory_bytes() {
  const char* value = std::getenv("GPU_HOST_MEMORY");
  return value ? std::strtoull(value, nullptr, 10) : size_t{4} << 30;
}

// A block is as far at the end of its pages as its address allows, which is an odd multiple of the alignment: what only
// holds for better aligned memory fails.
inline size_t padded_to_pages(size_t bytes) { return (kAddressAlignment + bytes + kPage - 1) / kPage * kPage; }
inline size_t start_in_pages(size_t bytes) {
  constexpr size_t kStep = 2 * kAddressAlignment;
  return (padded_to_pages(bytes) - bytes - kAddressAlignment) / kStep * kStep + kAddressAlignment;
}

// Memory of the host that has an address of the device, too.
class MappedMemory {
 public:
  explicit MappedMemory(size_t bytes) : bytes_(bytes), file_(memfd_create("mapped", MFD_CLOEXEC)) {
    const size_t padded = padded_to_pages(bytes);
    if (file_ < 0 || ftruncate(file_, static_cast<off_t>(padded)) != 0) std::abort();
    void* pages = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (pages == MAP_FAILED) std::abort();
    pages_ = static_cast<char*>(pages);
  }
  ~MappedMemory() {
    munmap(pages_, padded_to_pages(bytes_));
    close(file_);
  }
  MappedMemory(const MappedMemory&) = delete;

  void* host() const { return pages_ + start_in_pages(bytes_); }
  size_t bytes() const { return bytes_; }
  int file() const { return file_; }
  void show(bool yes) const { mprotect(pages_, padded_to_pages(bytes_), yes ? PROT_READ | PROT_WRITE : PROT_NONE); }
  void* device = nullptr;

 private:
  size_t bytes_;
  int file_;
  char* pages_ = nullptr;
};

// Device memory: addresses that are accessible only while work of the device runs, and that are never reused.
class DeviceMemory {
 public:
  DeviceMemory() {
    void* space = mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) std::abort();
    begin_ = static_cast<char*>(space);
  }

  // `file`: of memory that has an address of the host, too, in the same place of its pages; it is no memory of the
  // device.
  void* allocate(size_t bytes, int device, int file = -1) {
    if (file < 0 && bytes > limit - used_) return nullptr;
    const size_t padded = padded_to_pages(bytes);
    // Large pages make opening and closing a hundred times as fast.
    const size_t alignment = padded >= kLargePage ? kLargePage : kPage;
    const auto unaligned = reinterpret_cast<size_t>(begin_ + end_) % alignment;
    if (unaligned != 0) end_ += alignment - unaligned;
    if (end_ > kSpace || padded + kPage > kSpace - end_) return nullptr;
    // An inaccessible page follows the block's.
    char* const data = begin_ + end_ + start_in_pages(bytes);
    const Block block{data, begin_ + end_, padded, bytes, device, file >= 0};
    end_ += padded + kPage;
    if (file >= 0 && mmap(block.pages, padded, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
      return nullptr;
    if (alignment == kLargePage) madvise(block.pages, padded, MADV_HUGEPAGE);
    if (mprotect(block.pages, padded, open_ ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) return nullptr;
    ASAN_POISON_MEMORY_REGION(block.pages, padded);
    ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    blocks_[data] = block;
    if (!block.is_mapped) used_ += bytes;
    // Fresh memory has arbitrary contents; floats are NaN.
    const Access access(this);
    std::memset(data, 0xff, bytes);
    return data;
  }

  bool free(void* data, bool is_mapped = false) {
    const auto found = blocks_.find(data);
    if (found == blocks_.end() || found->second.is_mapped != is_mapped) return false;
    const Block& block = found->second;
    mmap(block.pages, block.padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (!is_mapped) used_ -= block.bytes;
    blocks_.erase(found);
    return true;
  }

  // Whether all of the bytes are in one block of the device; `or_mapped`: or of mapped memory.
  bool contains(const void* data, size_t bytes, int device, bool or_mapped = false) const {
    const auto after = blocks_.upper_bound(const_cast<void*>(data));
    if (after == blocks_.begin()) return false;
    const Block& block = std::prev(after)->second;
    const auto begin = static_cast<size_t>(static_cast<const char*>(data) - block.data);
    return block.device == device && (or_mapped || !block.is_mapped) && begin <= block.bytes &&
           bytes <= block.bytes - begin;
  }
  // Whether the address is in the range of all blocks.
  bool is_address(const void* data) const {
    return std::less_equal<>()(begin_, data) && std::less<>()(data, begin_ + kSpace);
  }

  size_t blocks() const { return blocks_.size(); }
  size_t used() const { return used_; }
  size_t limit = memory_bytes();

  // Makes the device's memory accessible while the object lives.
  class Access {
   public:
    explicit Access(DeviceMemory* memory) : memory_(*memory) {
      if (memory_.open_++ == 0) memory_.protect(PROT_READ | PROT_WRITE);
    }
    ~Access() {
      if (--memory_.open_ == 0) memory_.protect(PROT_NONE);
    }
    Access(const Access&) = delete;

   private:
    DeviceMemory& memory_;
  };

 private:
  struct Block {
    char* data;
    char* pages;
    size_t padded, bytes;
    int device;
    bool is_mapped;
  };

  void protect(int protection) {
    for (const auto& [data, block] : blocks_) mprotect(block.pages, block.padded, protection);
  }

  char* begin_ = nullptr;
  size_t end_ = 0, used_ = 0;
  int open_ = 0;
  std::map<void*, Block> blocks_;
};

}  // namespace gpu_host
