#include "kernels/modules.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr std::string_view kPrefix = "libonnx_train_", kSuffix = ".so";

// The folder of the library or program that contains this code.
std::filesystem::path module_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&module_names), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  const auto file = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : file.parent_path();
}

}  // namespace

std::vector<std::string> module_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(module_folder(), error)) {
    const std::string file = entry.path().filename();
    if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) continue;
    names.push_back(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void* module_function(const std::string& name, const char* function, const std::string& what) {
  const std::filesystem::path file = module_folder() / concat(kPrefix, name, kSuffix);
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) {
    fail_as(ErrorCode::kDeviceLibrary, what, ": ", dlerror(),
            "; install the library that is missing, or name its folder in LD_LIBRARY_PATH");
  }
  void* const address = dlsym(module, function);
  if (!address) fail_as(ErrorCode::kDevice, what, ": ", file.string(), " has no function ", function);
  return address;
}

}  // namespace onnx_train
