// The compiler of the released program: NVRTC, with the cache of images.
#include "kernels/cuda/fused/compiler.h"

#include "kernels/choices/cache.h"
#include "kernels/cuda/fused/nvrtc.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

std::string compile_kernel(const std::string& text, const std::string& architecture) {
  const CacheEntry entry = {"cuda", "cubin",
                            concat(architecture, " ", nvrtc_version(), "\n", embedded_headers(), text)};
  if (std::optional<std::string> image = read_cached(entry)) return *image;
  std::string image = compile_with_nvrtc(text, architecture);
  keep_cached(entry, image);
  return image;
}

}  // namespace onnx_train::cuda
