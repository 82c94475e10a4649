// Compiles the text of a kernel to a kernel that can be launched. Any thread may call.
#pragma once

#include <cuda_runtime.h>

#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Returns an image of the text for an architecture ("sm_90"), for cudaLibraryLoadData. Throws Error with the compiler's
// message. A user's folder caches images (compiler.cc), so that each text is compiled once.
std::string compile_kernel(const std::string& text, const std::string& architecture);

// The kernel of a text; all its parameters have 8 bytes.
class CompiledKernel {
 public:
  // Starts compiling the text on another thread.
  CompiledKernel(const std::string& text, const std::string& architecture);
  ~CompiledKernel();
  CompiledKernel(const CompiledKernel&) = delete;

  // Enqueues the kernel for `threads` threads in blocks of kThreads. `arguments` are pointers to its arguments, which
  // are read before the call returns. The first call waits for the compiler and throws Error with its message.
  void run(const Launch& launch, int64_t threads, void** arguments) const;

 private:
  void load() const;

  std::shared_future<std::string> image_;
  mutable std::once_flag loads_;
  mutable cudaLibrary_t library_ = nullptr;
  mutable cudaKernel_t kernel_ = nullptr;
};

// Returns the kernel of this text for the current device. Equal texts share it while anybody uses it.
std::shared_ptr<const CompiledKernel> shared_kernel(const std::string& text);

}  // namespace onnx_train::cuda
