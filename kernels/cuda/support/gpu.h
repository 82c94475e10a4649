// The header that kernel files include instead of cuda_runtime.h. nvcc compiles the file for devices. A C++ compiler
// compiles the same file as C++ if the macro GPU_ON_HOST is the name of a header, in quotes, that defines CUDA's
// language there: then kernels run on the host. For that, a kernel file
//   - launches with gpu::launch or gpu::launch_cooperative, not with <<<>>>,
//   - declares shared memory with GPU_SHARED and GPU_DYNAMIC_SHARED, not with __shared__,
//   - has no inline PTX: what tensor cores need of it is in support/tensor_core.h.
// Generated kernels include it, too; NVRTC compiles them without CUDA's headers and without launches.
#pragma once

#ifndef __CUDACC_RTC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <tuple>
#endif

#include <cstddef>

#ifdef GPU_ON_HOST
#include GPU_ON_HOST
#else

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cuda_pipeline_primitives.h>
#endif

// GPU_SHARED(tile, float[32][33]) declares shared memory of the block; the type must need no constructor.
#define GPU_SHARED(name, ...) __shared__ gpu::Type<__VA_ARGS__> name
// Declares a pointer to `type` at the launch's dynamic shared memory, aligned to 16 bytes.
#define GPU_DYNAMIC_SHARED(type, name)                            \
  extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared)  // NOLINT(bugprone-macro-parentheses): it declares

namespace gpu {

template <typename T>
using Type = T;

#ifndef __CUDACC_RTC__
inline constexpr size_t kDefaultSharedBytes = 48 << 10;  // of a block; a kernel that needs more says so

// Lets a kernel's blocks have `shared` bytes of dynamic shared memory. Returns the error if they cannot.
template <typename... Parameters>
cudaError_t allow_shared(void (*kernel)(Parameters...), size_t shared) {
  if (shared <= kDefaultSharedBytes) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
}

// Enqueues a kernel: `shared` bytes of dynamic shared memory, arguments converted to the kernel's parameters. Returns
// the error of the launch.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   const Arguments&... arguments) {
  if (const cudaError_t status = allow_shared(kernel, shared); status != cudaSuccess) return status;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// The same as a cooperative launch: all blocks run at once, so that they may wait for each other. Its error is
// cudaErrorCooperativeLaunchTooLarge where the device has no room for them. A stream that captures accepts it.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_cooperative(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                               const Arguments&... arguments) {
  if (const cudaError_t status = allow_shared(kernel, shared); status != cudaSuccess) return status;
  std::tuple<Parameters...> parameters{static_cast<Parameters>(arguments)...};
  return std::apply(
      [&](auto&... values) {
        void* addresses[] = {&values...};
        return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), grid, block, addresses, shared,
                                           stream);
      },
      parameters);
}
#endif

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
// Copies kBytes (4, 8 or 16) to shared memory, or zeros where !exists, without registers and without waiting;
// wait_for_copies waits for the calling thread's copies.
template <int kBytes>
__device__ void copy_async(void* to, const void* from, bool exists) {
  __pipeline_memcpy_async(to, from, kBytes, exists ? 0 : kBytes);
}
__device__ inline void wait_for_copies() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
}

// One thread hands over to a thread of another block: what the block wrote before a barrier and the store, or addition,
// is visible to the other one after the load that reads the stored value, or the sum, and a barrier.
__device__ inline void store_release(int* to, int value) {
  __nv_atomic_store_n(to, value, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
}
__device__ inline void add_release(int* to, int value) {
  __nv_atomic_fetch_add(to, value, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
}
__device__ inline int load_acquire(int* from) {
  return __nv_atomic_load_n(from, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE);
}
#endif

// Returns `p` as the address of a vector P, whose alignment it must have.
template <typename P, typename T>
__device__ P* vector_at(T* p) {
  return reinterpret_cast<P*>(p);
}

}  // namespace gpu

#endif

namespace gpu {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace gpu
