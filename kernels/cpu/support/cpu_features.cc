#include "kernels/cpu/support/cpu_features.h"

#include <cstdlib>
#include <string>

#include "kernels/cpu/support/onednn.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

struct Level {
  Isa isa;
  std::string_view name;
};

constexpr Level kLevels[] = {
    {Isa::kScalar, "scalar"},          {Isa::kNeon, "neon"}, {Isa::kAvx2, "avx2"}, {Isa::kAvx512, "avx512"},
    {Isa::kAvx512Bf16, "avx512_bf16"}, {Isa::kAmx, "amx"},
};

// Whether some machine of this architecture has the level.
constexpr bool is_of_architecture(Isa level) {
#if defined(__x86_64__)
  return level != Isa::kNeon;
#elif defined(__aarch64__)
  return level <= Isa::kNeon;
#else
  return level == Isa::kScalar;
#endif
}

Isa level_named(std::string_view name) {
  std::string names;
  for (const Level& level : kLevels) {
    if (!is_of_architecture(level.isa)) continue;
    if (level.name == name) return level.isa;
    names += (names.empty() ? "" : ", ") + std::string(level.name);
  }
  fail("ONNX_TRAIN_ISA is '", name, "': it takes one of ", names);
}

Isa highest() {
#if defined(__x86_64__)
  return highest_of_onednn(__builtin_cpu_supports("x86-64-v4")   ? Isa::kAmx
                           : __builtin_cpu_supports("x86-64-v3") ? Isa::kAvx2
                                                                 : Isa::kScalar);
#elif defined(__aarch64__)
  return Isa::kNeon;
#else
  return Isa::kScalar;
#endif
}

}  // namespace

std::string_view name_of(Isa level) { return kLevels[static_cast<size_t>(level)].name; }

Isa find_isa() {
  const char* name = std::getenv("ONNX_TRAIN_ISA");
  if (!name) return highest();
  const Isa wanted = level_named(name);
  if (!cap_onednn(wanted))
    fail("ONNX_TRAIN_ISA is ", name, ", but oneDNN has been used before and cannot be capped any more");
  if (const Isa most = highest(); most < wanted)
    fail("ONNX_TRAIN_ISA is ", name, ", which this machine lacks: its highest level is ", name_of(most));
  return wanted;
}

}  // namespace onnx_train::cpu
