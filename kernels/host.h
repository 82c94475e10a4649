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

// Reads files below `root` instead of "/".
size_t available_host_memory(const std::string& root);

// Returns the number of cores whose time the process's control groups allow, rounded up to at least 1; 0 if they do not
// limit it. Reads files below `root`, which is "" for those of this system.
int cores_of_quota(const std::string& root);

// Sets the number of threads that CPU kernels use when the calling thread runs them, at least 1.
void set_num_threads(int threads);
int num_threads();

// Returns the default number of threads: num_threads(), which OpenMP takes from OMP_NUM_THREADS or else from the cores
// that the process may run on; without that variable at most cores_of_quota().
int default_threads();

}  // namespace onnx_train
