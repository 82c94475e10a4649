// One source, three machine codes: `vectorized(f)` runs f compiled for the widest vectors that isa() allows (AVX-512,
// AVX2 with FMA, or what every x86-64 has) and returns what f returns. f is a lambda around simple loops; everything it
// calls is inlined into the copy, so it must be visible to the compiler and small. A loop whose pointers are
// __restrict is a function with such parameters, called by the lambda: GCC forgets __restrict of what a lambda
// captures.
#pragma once

#include "kernels/cpu/cpu_features.h"

namespace onnx_train::cpu {

#if defined(__x86_64__)

template <typename F>
[[gnu::target("arch=x86-64-v4,prefer-vector-width=512"), gnu::flatten, gnu::noinline]] auto run_avx512(const F& f) {
  return f();
}

template <typename F>
[[gnu::target("arch=x86-64-v3"), gnu::flatten, gnu::noinline]] auto run_avx2(const F& f) {
  return f();
}

// Apart from its caller as the others are: GCC would fit the loops to each caller, and sums of one loop would differ.
template <typename F>
[[gnu::flatten, gnu::noinline]] auto run_baseline(const F& f) {
  return f();
}

template <typename F>
auto vectorized(const F& f) {
  if (isa() >= Isa::kAvx512) return run_avx512(f);
  if (isa() >= Isa::kAvx2) return run_avx2(f);
  return run_baseline(f);
}

#else

template <typename F>
auto vectorized(const F& f) {
  return f();
}

#endif

}  // namespace onnx_train::cpu
