#include <dlfcn.h>

#include "kernels/cuda/collective/nccl.h"

namespace onnx_train::cuda {

void* nccl_function(const char* name) {
  static void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, name) : nullptr;
}

}  // namespace onnx_train::cuda
