// The host: the memory that this process can use, and the number of threads of the OpenMP pool that all CPU kernels
// share. Any thread may call.
#pragma once

#include <cstddef>
#include <string>

namespace onnx_train {

// Returns the smaller of the memory that the machine has available and the memory that the process's control groups
// allow, in bytes; the largest size_t if the system reports neither. Page cache charged to a group counts as available,
// because the kernel can drop it.
size_t available_host_memory();

// The same, reading files below `root` instead of "/".
size_t available_host_memory(const std::string& root);

// Sets the number of threads that CPU kernels use when the calling thread runs them, at least 1. The default is the
// number of cores that this process may use.
void set_num_threads(int threads);
int num_threads();

}  // namespace onnx_train
