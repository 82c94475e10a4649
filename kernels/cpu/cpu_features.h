// The instruction sets that kernels use. Code that exists for several of them asks isa(), and oneDNN is held to the
// same level, so that one environment variable, ONNX_TRAIN_ISA, chooses for the whole process. OpenBLAS, which
// multiplies float64 matrices, chooses when it is loaded, by its own variable OPENBLAS_CORETYPE.
#pragma once

#include <string_view>

namespace onnx_train::cpu {

// Each level includes those before it.
enum class Isa {
  kBaseline,    // what every x86-64 has; oneDNN also takes SSE4.1. The only level of other processors.
  kAvx2,        // x86-64-v3: AVX2, FMA, F16C
  kAvx512,      // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  kAvx512Bf16,  // products of bfloat16 numbers
  kAmx,         // products of whole tiles of them
};

// "baseline", "avx2", "avx512", "avx512_bf16", "amx".
std::string_view name_of(Isa level);

// Asks the machine, oneDNN and ONNX_TRAIN_ISA: what isa() remembers.
Isa find_isa();

// The level that code of this process uses: the one that ONNX_TRAIN_ISA names, to which oneDNN is then capped; where
// the variable is not set, the highest that both this machine has and oneDNN may use (ONEDNN_MAX_CPU_ISA caps both).
//
// Any thread may call. Device::cpu() calls it first. Throws Error when the variable names no level or one that this
// machine lacks, and when oneDNN can no longer be capped because it has been used.
inline Isa isa() {
  static const Isa level = find_isa();
  return level;
}

}  // namespace onnx_train::cpu
