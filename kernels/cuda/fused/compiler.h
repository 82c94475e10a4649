// From the text of a kernel to a kernel that can be launched. Any thread may call.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Whether there is a compiler: NVRTC, which is part of NVIDIA's toolkit.
bool has_compiler();

// An image of the text for the device, for cudaLibraryLoadData. Throws Error with the compiler's message. Images are
// kept in a folder of the user's (compiler.cc), so that a text is compiled once.
std::string compile_kernel(const std::string& text);

// A kernel of one text, whose parameters all are addresses.
class CompiledKernel {
 public:
  explicit CompiledKernel(const std::string& text);
  ~CompiledKernel();
  CompiledKernel(const CompiledKernel&) = delete;

  // Enqueues the kernel for `threads` threads in blocks of kThreads. `arguments` are pointers to its arguments, which
  // are read before the call returns.
  void run(const Launch& launch, int64_t threads, void** arguments) const;

 private:
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

// The kernel of this text; equal texts share one as long as somebody uses it.
std::shared_ptr<const CompiledKernel> shared_kernel(const std::string& text);

}  // namespace onnx_train::cuda
