#include <map>
#include <mutex>

#include "kernels/cuda/fused/compiler.h"
#include "kernels/cuda/fused/source.h"
#include "kernels/cuda/support/launch.h"

namespace onnx_train::cuda {

CompiledKernel::CompiledKernel(const std::string& text) {
  const std::string image = compile_kernel(text);
  check(cudaLibraryLoadData(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
  const cudaError_t found = cudaLibraryGetKernel(&kernel_, library_, kFusedKernel);
  if (found != cudaSuccess) cudaLibraryUnload(library_);
  check(found, "cudaLibraryGetKernel");
}

CompiledKernel::~CompiledKernel() { cudaLibraryUnload(library_); }

void CompiledKernel::run(const Launch& launch, int64_t threads, void** arguments) const {
  const cudaLaunchConfig_t config = {blocks_for(threads), kThreads, 0, stream_of(launch), nullptr, 0};
  check(cudaLaunchKernelExC(&config, kernel_, arguments), kFusedKernel);
}

std::shared_ptr<const CompiledKernel> shared_kernel(const std::string& text) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const CompiledKernel>> kernels;
  const std::lock_guard lock(mutex);
  std::weak_ptr<const CompiledKernel>& known = kernels[text];
  if (auto kernel = known.lock()) return kernel;
  auto kernel = std::make_shared<const CompiledKernel>(text);
  known = kernel;
  return kernel;
}

}  // namespace onnx_train::cuda
