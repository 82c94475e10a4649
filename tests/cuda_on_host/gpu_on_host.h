// CUDA's language on the host, for tests: kernels/cuda/support/gpu.h includes this file, which the macro GPU_ON_HOST
// names, if a C++ compiler compiles a kernel file. The blocks of a grid run one after the other; the threads of a block
// are fibers of one host thread, and a thread runs until it reaches a barrier or a warp collective. machine.cc
// implements this.
//
// It detects accesses out of bounds and after free (address sanitizer; also in shared memory), misaligned vectors
// (undefined-behaviour sanitizer), races between threads and blocks (thread sanitizer), barriers that some threads
// never reach, collectives whose mask names an exited lane, and reads of unwritten shared memory (it starts as NaN).
// GPU_HOST_ORDER=backwards, or =SEED, changes the order in which threads and blocks run: results must be equal.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <type_traits>

// One machine runs the kernels of a program and those of generated libraries, whose own names are hidden
// (generated.cc).
#pragma GCC visibility push(default)
namespace gpu_host {

// An index of the running thread; kernels read it as threadIdx and so on.
struct Index {
  unsigned x = 0, y = 0, z = 0;
};
extern Index thread_index, block_index;
extern dim3 block_size, grid_size;

// Runs all threads of a grid. One host thread at a time may call it.
void run_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const std::function<void()>& thread);
// The same with all blocks alive at once, so that they can wait for each other.
void run_cooperative_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const std::function<void()>& thread);
// Enqueues work, a launch of `kernel` with `shared` bytes of dynamic shared memory, to a stream of the host's runtime
// (runtime.cc). Returns an error if a device would not launch such a grid, or such blocks; null stands for a library's
// kernels.
cudaError_t enqueue_launch(cudaStream_t stream, const void* kernel, dim3 grid, dim3 block, size_t shared,
                           std::function<void()> work);
// Enqueues a cooperative launch; cudaErrorCooperativeLaunchTooLarge if not all of its blocks fit the device at once.
cudaError_t enqueue_cooperative_launch(cudaStream_t stream, const void* kernel, dim3 grid, dim3 block, size_t shared,
                                       std::function<void()> work);
// Lets blocks of a kernel have `bytes` of dynamic shared memory, of which they have 48 KiB at most without it.
cudaError_t allow_shared(const void* kernel, size_t bytes);
// Whether the address is one that the device's memory has, has had, or may have: kernels can use no other.
bool is_device_address(const void* address);
// Enqueues work that may have to wait for other processes. It does what it can and returns whether it is done; it is
// called again until then, and other streams with such work get on in between.
cudaError_t enqueue_exchange(cudaStream_t stream, std::function<bool()> work);

// Ends the program with the position of the running thread, because a kernel did something undefined on hardware.
[[noreturn]] void refuse(const char* what);

int lane();
int threads_in_block();
void block_barrier();
int block_barrier_count(bool predicate);  // the number of threads whose predicate is true
void fence();
// Returns the memory of the block's variable `key`; a separate allocation, so that sanitizers see its bounds. Its
// address is no multiple of 2 x `alignment`, which is up to 16: a compiler for devices promises no more.
void* shared_variable(const void* key, size_t bytes, size_t alignment);
void* dynamic_shared();
// Defers a copy to async_wait. A null `from` writes zeros.
void async_copy(void* to, const void* from, size_t bytes);
void async_wait();
// The calling thread has read `value`, perhaps in a loop that waits for another block. If it has read the same before,
// other blocks of a cooperative launch run; otherwise it goes on, so that blocks get as far ahead of others as they
// can.
void spin(const int* from, int value);

// Gathers one value per lane in the mask: lane i's is at data + i·bytes. Valid until the lane's next collective.
const void* gather_lanes(uint32_t mask, const void* value, size_t bytes);
inline constexpr size_t kMostLaneBytes = 64;

}  // namespace gpu_host
#pragma GCC visibility pop

namespace gpu_host {

template <typename T>
const T* lanes(uint32_t mask, const T& value) {
  static_assert(sizeof(T) <= kMostLaneBytes && std::is_trivially_copyable_v<T>);
  return static_cast<const T*>(gather_lanes(mask, &value, sizeof(T)));
}

// Returns the value of lane first + from of the running lane's segment of `width` lanes, or its own value if `from` is
// outside of the segment.
template <typename T>
T shuffle(uint32_t mask, const T& value, int from, int width) {
  const T* all = lanes(mask, value);
  if (from < 0 || from >= width) return value;
  const int source = (lane() & ~(width - 1)) + from;
  if (!(mask >> source & 1)) refuse("a shuffle reads a lane that its mask leaves out");
  return all[source];
}

template <typename T, typename F>
T atomic_update(T* p, F&& f) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  static_assert(sizeof(T) == sizeof(Bits));
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) refuse("an atomic operation at an address that is not aligned");
  auto* bits = reinterpret_cast<Bits*>(p);
  Bits found = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (true) {
    T old;
    std::memcpy(&old, &found, sizeof(T));
    const T wanted = f(old);
    Bits next;
    std::memcpy(&next, &wanted, sizeof(T));
    if (__atomic_compare_exchange_n(bits, &found, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

template <typename T>
using Type = T;

}  // namespace gpu_host

// A plain __shared__ must not compile here, because all blocks would share the variable.
#undef __shared__
#define __shared__ use_GPU_SHARED
#undef __constant__
#define __constant__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

#define GPU_SHARED(name, ...)                                                        \
  static const char name##_key = 0;                                                  \
  auto& name = *static_cast<gpu_host::Type<__VA_ARGS__>*>(gpu_host::shared_variable( \
      &name##_key, sizeof(gpu_host::Type<__VA_ARGS__>), alignof(gpu_host::Type<__VA_ARGS__>)))
#define GPU_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(gpu_host::dynamic_shared())

#define threadIdx (gpu_host::thread_index)
#define blockIdx (gpu_host::block_index)
#define blockDim (gpu_host::block_size)
#define gridDim (gpu_host::grid_size)

inline void __syncthreads() { gpu_host::block_barrier(); }
inline int __syncthreads_count(int p) { return gpu_host::block_barrier_count(p != 0); }
inline int __syncthreads_or(int p) { return gpu_host::block_barrier_count(p != 0) > 0; }
inline int __syncthreads_and(int p) { return gpu_host::block_barrier_count(p == 0) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) { gpu_host::lanes(mask, char{}); }
inline void __threadfence() { gpu_host::fence(); }
inline void __threadfence_block() { gpu_host::fence(); }
// Hardware may answer as little as this: code must not rely on more.
inline unsigned __activemask() { return 1u << gpu_host::lane(); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return gpu_host::shuffle(mask, value, source & (width - 1), width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return gpu_host::shuffle(mask, value, (gpu_host::lane() & (width - 1)) ^ bits, width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  return gpu_host::shuffle(mask, value, (gpu_host::lane() & (width - 1)) + static_cast<int>(distance), width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  return gpu_host::shuffle(mask, value, (gpu_host::lane() & (width - 1)) - static_cast<int>(distance), width);
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  const bool* all = gpu_host::lanes(mask, p != 0);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) && all[i]) bits |= 1u << i;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  const T* all = gpu_host::lanes(mask, value);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) && all[i] == value) bits |= 1u << i;
  }
  return bits;
}

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, std::type_identity_t<T> value) {
  *p = value;
}

template <typename T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return gpu_host::atomic_update(p, [&](T x) { return static_cast<T>(x + v); });
}
template <typename T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return gpu_host::atomic_update(p, [&](T x) { return x < v ? v : x; });
}
template <typename T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return gpu_host::atomic_update(p, [&](T x) { return v < x ? v : x; });
}
template <typename T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return gpu_host::atomic_update(p, [&](T x) { return static_cast<T>(x | v); });
}
template <typename T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  return gpu_host::atomic_update(p, [&](T) { return v; });
}
template <typename T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return gpu_host::atomic_update(p, [&](T x) { return x == expected ? v : x; });
}

inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(static_cast<unsigned>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

namespace gpu {

template <typename... Parameters>
cudaError_t allow_shared(void (*kernel)(Parameters...), size_t shared) {
  return gpu_host::allow_shared(reinterpret_cast<const void*>(kernel), shared);
}

// An address is the device's, and has the alignment of its type: 16 bytes if rows are copied in such units. Addresses
// within structures are not checked: what is there of arrays that are not filled may be anything.
template <typename T>
cudaError_t check_argument(const T& argument) {
  if constexpr (std::is_pointer_v<T>) {
    using Element = std::remove_pointer_t<T>;
    if (argument && !gpu_host::is_device_address(argument)) return cudaErrorIllegalAddress;
    if constexpr (std::is_object_v<Element>) {
      if (reinterpret_cast<uintptr_t>(argument) % alignof(Element) != 0) return cudaErrorMisalignedAddress;
    }
  }
  return cudaSuccess;
}

// Returns the first error, or success.
inline cudaError_t first_error(std::initializer_list<cudaError_t> all) {
  return *std::find_if(all.begin(), all.end() - 1, [](cudaError_t status) { return status != cudaSuccess; });
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   const Arguments&... arguments) {
  const cudaError_t status =
      first_error({allow_shared(kernel, shared), check_argument<Parameters>(static_cast<Parameters>(arguments))...});
  if (status != cudaSuccess) return status;
  return gpu_host::enqueue_launch(stream, reinterpret_cast<const void*>(kernel), grid, block, shared, [=] {
    gpu_host::run_grid(grid, block, shared, [&] { kernel(static_cast<Parameters>(arguments)...); });
  });
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_cooperative(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                               const Arguments&... arguments) {
  const cudaError_t status =
      first_error({allow_shared(kernel, shared), check_argument<Parameters>(static_cast<Parameters>(arguments))...});
  if (status != cudaSuccess) return status;
  return gpu_host::enqueue_cooperative_launch(stream, reinterpret_cast<const void*>(kernel), grid, block, shared, [=] {
    gpu_host::run_cooperative_grid(grid, block, shared, [&] { kernel(static_cast<Parameters>(arguments)...); });
  });
}

template <int kBytes>
void copy_async(void* to, const void* from, bool exists) {
  gpu_host::async_copy(to, exists ? from : nullptr, kBytes);
}
inline void wait_for_copies() { gpu_host::async_wait(); }
inline void store_release(int* to, int value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
inline void add_release(int* to, int value) { __atomic_fetch_add(to, value, __ATOMIC_RELEASE); }
inline int load_acquire(const int* from) {
  gpu_host::spin(from, __atomic_load_n(from, __ATOMIC_RELAXED));
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

// kernels/cuda/support/tensor_core.h
inline float to_tf32(float x) {
  constexpr unsigned kDropped = 13;  // bits
  if (x != x) return x;
  return std::bit_cast<float>((std::bit_cast<unsigned>(x) + (1u << (kDropped - 1))) >> kDropped << kDropped);
}
inline void multiply_add_16x8x8(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  struct Fragments {
    float a[4], b[2];
  };
  const Fragments own = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  for (const float element : {a[0], a[1], a[2], a[3], b[0], b[1]}) {
    if (element == element && to_tf32(element) != element) gpu_host::refuse("an operand that is not rounded to TF32");
  }
  const Fragments* const all = gpu_host::lanes(0xffffffffu, own);
  const int g = gpu_host::lane() / 4, t = gpu_host::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int low = i / 2, column = 2 * t + i % 2;  // d[i] is element (g + 8 low, column)
    for (int k = 0; k < 8; ++k) {
      d[i] += all[4 * g + k % 4].a[k / 4 * 2 + low] * all[4 * column + k % 4].b[k / 4];
    }
  }
}

inline void load_matrices(float (&elements)[4], const float* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) gpu_host::refuse("ldmatrix at an address that is not aligned");
  const float* const* const rows = gpu_host::lanes(0xffffffffu, row);
  for (int i = 0; i < 4; ++i) elements[i] = rows[8 * i + gpu_host::lane() / 4][gpu_host::lane() % 4];
}

template <typename P, typename T>
P* vector_at(T* p) {
  if (reinterpret_cast<uintptr_t>(p) % alignof(P) != 0) gpu_host::refuse("a vector at an address that is not aligned");
  return reinterpret_cast<P*>(p);
}

}  // namespace gpu
