// What this process and this machine have of memory and of processors' time. Any thread.
#pragma once

#include <cstddef>
#include <set>
#include <string>

namespace onnx_train::platform {

// What this process has of memory now, and the most that it ever had, in bytes, which counts pages of mapped files; 0
// if the system does not tell.
double resident_memory();
double peak_memory();
// Of the first, the mappings that hold one of the addresses.
double resident_memory_around(const std::set<const void*>& addresses);

// Returns freed memory to the system: small tensors of a file leave holes in the heap, which the C library of a program
// or of Python would keep.
void give_back_freed_memory();

// Returns the smaller of the memory that the machine has available and the memory that the process's control groups
// allow, in bytes; the largest size_t if the system reports neither. Page cache charged to a group counts as available,
// because the kernel can drop it. Reads files below `root`, which is "" for those of this system.
size_t available_memory(const std::string& root);

// Returns the number of cores whose time the process's control groups allow, rounded up to at least 1; 0 if they do not
// limit it. Reads files below `root`, which is "" for those of this system.
int cores_of_quota(const std::string& root);

}  // namespace onnx_train::platform
