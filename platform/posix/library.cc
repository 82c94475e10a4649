#include "platform/library.h"

#include <dlfcn.h>

namespace onnx_train::platform {

#ifdef __APPLE__
const char* const kLibrarySuffix = ".dylib";
#else
const char* const kLibrarySuffix = ".so";
#endif

std::string file_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname ? info.dli_fname : "";
}

void* open_library(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); }

std::string library_error() {
  const char* const error = dlerror();
  return error ? error : "";
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

}  // namespace onnx_train::platform
