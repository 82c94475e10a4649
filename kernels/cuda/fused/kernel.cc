#include <algorithm>
#include <map>
#include <semaphore>
#include <thread>

#include "kernels/cuda/fused/compiler.h"
#include "kernels/cuda/fused/source.h"
#include "kernels/cuda/support/launch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

namespace {

std::string architecture() {
  const int device = current_device();
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return concat("sm_", major, minor);
}

// Compiles at most as many texts at once as there are processors.
std::string compile_in_turn(const std::string& text, const std::string& target) {
  static std::counting_semaphore<> turns(std::max(1u, std::thread::hardware_concurrency()));
  turns.acquire();
  const std::unique_ptr<decltype(turns), void (*)(decltype(turns)*)> turn(&turns, [](auto* all) { all->release(); });
  return compile_kernel(text, target);
}

}  // namespace

CompiledKernel::CompiledKernel(const std::string& text, const std::string& architecture)
    : image_(std::async(compile_in_turn, text, architecture).share()) {}

CompiledKernel::~CompiledKernel() {
  if (library_) cudaLibraryUnload(library_);
}

void CompiledKernel::load() const {
  cudaLibrary_t library = nullptr;
  check(cudaLibraryLoadData(&library, image_.get().data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cudaLibraryLoadData");
  const cudaError_t found = cudaLibraryGetKernel(&kernel_, library, kFusedKernel);
  if (found != cudaSuccess) cudaLibraryUnload(library);
  check(found, "cudaLibraryGetKernel");
  library_ = library;
}

void CompiledKernel::run(const Launch& launch, int64_t threads, void** arguments) const {
  std::call_once(loads_, [this] { load(); });
  const cudaLaunchConfig_t config = {blocks_for(threads), kThreads, 0, stream_of(launch), nullptr, 0};
  check(cudaLaunchKernelExC(&config, kernel_, arguments), kFusedKernel);
}

std::shared_ptr<const CompiledKernel> shared_kernel(const std::string& text) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::weak_ptr<const CompiledKernel>> kernels;
  const std::pair key(architecture(), text);
  const std::lock_guard lock(mutex);
  if (const auto known = kernels.find(key); known != kernels.end()) {
    if (auto kernel = known->second.lock()) return kernel;
  }
  std::erase_if(kernels, [](const auto& entry) { return entry.second.expired(); });
  auto kernel = std::make_shared<const CompiledKernel>(text, key.first);
  kernels[key] = kernel;
  return kernel;
}

}  // namespace onnx_train::cuda
