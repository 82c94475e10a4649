// The instruction sets that kernels use. Code with variants asks isa(), and oneDNN is capped at the same level, so one
// environment variable, ONNX_TRAIN_ISA, sets the level of the whole process. OpenBLAS chooses its own level when it is
// loaded; its variable is OPENBLAS_CORETYPE.
#pragma once

#include <string_view>

namespace onnx_train::cpu {

// Each level includes the previous ones of the same architecture; a machine has those of its own.
enum class Isa {
  kScalar,      // the portable code: what the compiler makes for any processor of the architecture, and BLAS
  kNeon,        // aarch64
  kAvx2,        // x86-64-v3: AVX2, FMA, F16C
  kAvx512,      // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  kAvx512Bf16,  // bfloat16 dot products
  kAmx,         // bfloat16 tile products
};

// "scalar", "neon", "avx2", "avx512", "avx512_bf16", "amx".
std::string_view name_of(Isa level);

// Queries the machine, oneDNN and ONNX_TRAIN_ISA. isa() caches the result.
Isa find_isa();

// The level that code of this process uses: the one that ONNX_TRAIN_ISA names, at which oneDNN is then capped. Without
// the variable it is the highest that this machine has and oneDNN may use (ONEDNN_MAX_CPU_ISA limits both).
//
// Any thread may call; Device::cpu() makes the first call. Throws Error when the variable names no level, names one
// that this machine lacks, or when oneDNN can no longer be capped because it has been used already.
inline Isa isa() {
  static const Isa level = find_isa();
  return level;
}

}  // namespace onnx_train::cpu
