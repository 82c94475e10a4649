#include <dlfcn.h>

#include "kernels/cuda/support/cudnn_library.h"

namespace onnx_train::cuda {

void* cudnn_function(const char* name) {
  static void* const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, name) : nullptr;
}

}  // namespace onnx_train::cuda
