// The functions of the CUDA runtime that the backend calls, defined on the host against NVIDIA's headers (runtime.cc).
//
// Streams are lazy: work runs only when the host waits for it, and work of other streams as late as events allow, so
// that a missing wait gives a wrong result. Device memory is inaccessible to the host: only work of a stream and copies
// can access it, and freed memory stays inaccessible. Mapped memory of the host has two addresses: that of the device
// is such memory, that of the host is inaccessible while any work is enqueued, which may use it. Any thread may call
// all functions; one at a time runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace gpu_host {

// Makes call `n` (from 0 on) to a function that can fail return an error; none if `n` is negative.
void fail_call(int64_t n);
int64_t calls();        // number of calls so far
size_t live_objects();  // memory blocks, streams, events and graphs not destroyed
// How often a kernel has run, and the largest of its blocks.
struct Launches {
  int64_t runs = 0;
  size_t most_threads = 0, most_shared = 0;  // of a block; bytes of dynamic shared memory
};
// Returns these by the address of the kernel's host function; null counts the library's products.
const std::map<const void*, Launches>& launches();
// Limits the device's memory, and the mapped memory of the host; further allocations beyond it fail.
void set_memory_bytes(size_t bytes);
void set_mapped_bytes(size_t bytes);
// Whether the bytes are in one block of the current device's memory.
bool is_device_memory(const void* data, size_t bytes);
// Sets whether cuBLASLt has the epilogues that sum an operand, which it lacks for some products.
void let_products_sum_operands(bool yes);
// Sets how many algorithms cuBLASLt has for each product, 1 at first. Each is slower than those that it ranks below.
void let_products_have_algorithms(int count);

}  // namespace gpu_host
