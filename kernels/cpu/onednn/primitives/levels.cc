#include "kernels/cpu/support/onednn.h"

#include <dnnl.hpp>
#include <iterator>

#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

struct Level {
  Isa isa;
  dnnl::cpu_isa onednn;  // oneDNN's levels are numbers; a higher one includes the lower ones
};

constexpr Level kLevels[] = {
    {Isa::kAvx2, dnnl::cpu_isa::avx2},
    {Isa::kAvx512, dnnl::cpu_isa::avx512_core},
    {Isa::kAvx512Bf16, dnnl::cpu_isa::avx512_core_bf16},
    {Isa::kAmx, dnnl::cpu_isa::avx512_core_amx},
};

}  // namespace

bool has_onednn() { return isa() != Isa::kScalar; }

std::string onednn_version() {
  const dnnl_version_t* const version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch);
}

Isa highest_of_onednn(Isa most) {
  const auto onednn = dnnl::get_effective_cpu_isa();
  for (auto level = std::rbegin(kLevels); level != std::rend(kLevels); ++level) {
    if (level->isa <= most && onednn >= level->onednn) return level->isa;
  }
  return Isa::kScalar;
}

bool cap_onednn(Isa level) {
  for (const Level& known : kLevels) {
    if (known.isa == level) return dnnl::set_max_cpu_isa(known.onednn) == dnnl::status::success;
  }
  return true;
}

}  // namespace onnx_train::cpu
