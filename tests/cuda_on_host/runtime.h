// The functions of the CUDA runtime that the backend calls, defined on the host against NVIDIA's headers (runtime.cc).
//
// Streams are lazy: work runs only when somebody waits for it, and the work of another stream as late as events allow.
// A forgotten wait is then a wrong result. Device memory is closed to the host: only work of a stream and copies can
// touch it, and memory that is freed stays closed. All functions may be called from any thread; one at a time runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace gpu_host {

// From now on, call number `n` (from 0) to a function that can fail returns an error; a negative number: none does.
void fail_call(int64_t n);
int64_t calls();        // so far
size_t live_objects();  // blocks of memory, streams, events and graphs that are not destroyed
// How often each kernel has run, by the address of its host function; null stands for the library's products.
const std::map<const void*, int64_t>& launches();
// Limits the device's memory; further allocations beyond it fail.
void set_memory_bytes(size_t bytes);
// Whether cuBLASLt has the epilogues that sum up an operand, which it lacks for some products.
void let_products_sum_operands(bool yes);

}  // namespace gpu_host
