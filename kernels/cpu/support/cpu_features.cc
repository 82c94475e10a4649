#include "kernels/cpu/support/cpu_features.h"

#include <cstdlib>
#include <dnnl.hpp>
#include <iterator>

#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

struct Level {
  Isa isa;
  std::string_view name;
  dnnl::cpu_isa onednn;  // oneDNN's levels are numbers; a higher one includes the lower ones
};

constexpr Level kLevels[] = {
    {Isa::kBaseline, "baseline", dnnl::cpu_isa::sse41},
    {Isa::kAvx2, "avx2", dnnl::cpu_isa::avx2},
    {Isa::kAvx512, "avx512", dnnl::cpu_isa::avx512_core},
    {Isa::kAvx512Bf16, "avx512_bf16", dnnl::cpu_isa::avx512_core_bf16},
    {Isa::kAmx, "amx", dnnl::cpu_isa::avx512_core_amx},
};

const Level& level_named(std::string_view name) {
  for (const Level& level : kLevels) {
    if (level.name == name) return level;
  }
  fail("ONNX_TRAIN_ISA is '", name, "': it takes baseline, avx2, avx512, avx512_bf16 or amx");
}

// Returns the machine's highest level that oneDNN may use. oneDNN requests the AMX registers from the system here.
Isa highest() {
#if defined(__x86_64__)
  const auto onednn = dnnl::get_effective_cpu_isa();
  const Isa most = __builtin_cpu_supports("x86-64-v4")   ? Isa::kAmx
                   : __builtin_cpu_supports("x86-64-v3") ? Isa::kAvx2
                                                         : Isa::kBaseline;
  for (auto level = std::rbegin(kLevels); level != std::rend(kLevels); ++level) {
    if (level->isa <= most && onednn >= level->onednn) return level->isa;
  }
#endif
  return Isa::kBaseline;
}

}  // namespace

std::string_view name_of(Isa level) { return kLevels[static_cast<size_t>(level)].name; }

Isa find_isa() {
  const char* name = std::getenv("ONNX_TRAIN_ISA");
  if (!name) return highest();
  const Level& wanted = level_named(name);
  // Must precede oneDNN's first query, which fixes its level.
  if (dnnl::set_max_cpu_isa(wanted.onednn) != dnnl::status::success)
    fail("ONNX_TRAIN_ISA is ", name, ", but oneDNN has been used before and cannot be capped any more");
  if (const Isa most = highest(); most < wanted.isa)
    fail("ONNX_TRAIN_ISA is ", name, ", which this machine lacks: its highest level is ", name_of(most));
  return wanted.isa;
}

}  // namespace onnx_train::cpu
