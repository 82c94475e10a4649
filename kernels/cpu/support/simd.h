// Runtime dispatch on the instruction set: `vectorized(f)` runs f compiled for the widest vectors that isa() allows
// (AVX-512, AVX2 with FMA, or those that every processor of the architecture has: SSE2, NEON) and returns its result. f
// is a lambda around simple loops; everything it calls is inlined into each variant, so it must be visible to the
// compiler and small. To use __restrict pointers, put the loop into a function with __restrict parameters and call it
// from the lambda: GCC drops __restrict from captured pointers. Any thread may call.
#pragma once

#include "kernels/cpu/support/cpu_features.h"

namespace onnx_train::cpu {

// noinline like the others: otherwise GCC specializes the loops for each caller, and sums of the same loop would
// differ.
template <typename F>
[[gnu::flatten, gnu::noinline]] auto run_portable(const F& f) {
  return f();
}

#if defined(__x86_64__)

template <typename F>
[[gnu::target("arch=x86-64-v4,prefer-vector-width=512"), gnu::flatten, gnu::noinline]] auto run_avx512(const F& f) {
  return f();
}

template <typename F>
[[gnu::target("arch=x86-64-v3"), gnu::flatten, gnu::noinline]] auto run_avx2(const F& f) {
  return f();
}

template <typename F>
auto vectorized(const F& f) {
  if (isa() >= Isa::kAvx512) return run_avx512(f);
  if (isa() >= Isa::kAvx2) return run_avx2(f);
  return run_portable(f);
}

#else

template <typename F>
auto vectorized(const F& f) {
  return run_portable(f);
}

#endif

}  // namespace onnx_train::cpu
