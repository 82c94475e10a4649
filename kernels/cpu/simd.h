// One source, three machine codes: `vectorized(f)` runs f compiled for the widest vectors that this machine has
// (AVX-512, AVX2 with FMA, or what every x86-64 has). f is a lambda around simple loops; everything it calls is
// inlined into the copy, so it must be visible to the compiler and small.
#pragma once

#include <utility>

namespace onnx_train::cpu {

#if defined(__x86_64__)

enum class Simd { kBaseline, kAvx2, kAvx512 };

inline Simd simd_level() {
  static const Simd level = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
                                ? Simd::kAvx512
                            : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Simd::kAvx2
                                                                                              : Simd::kBaseline;
  return level;
}

template <typename F>
[[gnu::target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,prefer-vector-width=512"), gnu::flatten,
  gnu::noinline]] void
run_avx512(const F& f) {
  f();
}

template <typename F>
[[gnu::target("avx2,fma,f16c"), gnu::flatten, gnu::noinline]] void run_avx2(const F& f) {
  f();
}

template <typename F>
void vectorized(const F& f) {
  switch (simd_level()) {
    case Simd::kAvx512: return run_avx512(f);
    case Simd::kAvx2: return run_avx2(f);
    case Simd::kBaseline: return f();
  }
}

#else

template <typename F>
void vectorized(const F& f) {
  f();
}

#endif

}  // namespace onnx_train::cpu
