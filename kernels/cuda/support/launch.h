// Helpers of the run functions of CUDA kernels: launches on the stream of a run, and the guard of in-place updates.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/support/gpu.h"
#include "kernels/cuda/support/runtime.h"
#include "kernels/cuda/support/threads.h"
#include "kernels/kernel.h"

namespace onnx_train::cuda {

cudaStream_t stream_of(const Launch& launch);

// Number of blocks of kThreads for n threads: at least one, at most a grid's limit.
inline unsigned blocks_for(int64_t n) {
  return static_cast<unsigned>(std::clamp<int64_t>((n + kThreads - 1) / kThreads, 1, 0x7fffffff));
}

// Enqueues a kernel on the run's stream. Throws Error, which names the kernel `name`, if the launch fails.
template <typename... Parameters, typename... Arguments>
void enqueue(const Launch& launch, const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
             size_t shared, const Arguments&... arguments) {
  check(gpu::launch(kernel, grid, block, shared, stream_of(launch), arguments...), name);
}

// Enqueues a kernel with a thread for each of n elements; n is the first of its arguments. Nothing, if n is 0.
template <typename... Parameters, typename... Arguments>
void enqueue_each(const Launch& launch, const char* name, void (*kernel)(int64_t, Parameters...), int64_t n,
                  const Arguments&... arguments) {
  if (n > 0) enqueue(launch, name, kernel, blocks_for(n), kThreads, 0, n, arguments...);
}

// Sets each of `bytes` bytes at `to`, which may be none, to `value`.
inline void set_bytes(const Launch& launch, void* to, int value, size_t bytes) {
  if (bytes > 0) check(cudaMemsetAsync(to, value, bytes, stream_of(launch)), "cudaMemsetAsync");
}

// Returns the fault that a kernel must check before it writes, or null. A node that writes to one of its inputs may
// update a state, and no state changes after a fault (device.h).
inline const Fault* guard_of(const Launch& launch, int inputs, int outputs) {
  for (int o = 0; o < outputs; ++o) {
    for (int i = 0; i < inputs; ++i) {
      if (launch.outputs[o] && launch.outputs[o] == launch.inputs[i]) return launch.fault;
    }
  }
  return nullptr;
}

__host__ __device__ inline bool stops(const Fault* guard) { return guard && guard->node != 0; }

}  // namespace onnx_train::cuda
