// The compiler of the released program: NVRTC, with the cache of images.
#include "kernels/cuda/fused/compiler.h"

#include "kernels/cuda/fused/nvrtc.h"
#include "kernels/cuda/support/cache.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

std::string compile_kernel(const std::string& text, const std::string& architecture) {
  const std::string key = concat(architecture, " ", nvrtc_version(), "\n", embedded_headers(), text);
  if (std::optional<std::string> image = read_cached("cubin", key)) return *image;
  std::string image = compile_with_nvrtc(text, architecture);
  write_cached("cubin", key, image);
  return image;
}

}  // namespace onnx_train::cuda
