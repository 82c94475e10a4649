#include "kernels/modules.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "onnx_passes/ir/error.h"
#include "platform/library.h"

namespace onnx_train {
namespace {

constexpr std::string_view kPrefix = "libonnx_train_";

std::string_view suffix() { return platform::kLibrarySuffix; }

// The folder of the library or program that contains this code.
std::filesystem::path module_folder() {
  const std::string own = platform::file_of(reinterpret_cast<const void*>(&module_names));
  if (own.empty()) return {};
  std::error_code error;
  const auto file = std::filesystem::canonical(own, error);
  return error ? std::filesystem::path() : file.parent_path();
}

}  // namespace

std::vector<std::string> module_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(module_folder(), error)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(kPrefix) || !file.ends_with(suffix())) continue;
    names.push_back(file.substr(kPrefix.size(), file.size() - kPrefix.size() - suffix().size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void* module_function(const std::string& name, const char* function, const std::string& what) {
  const std::filesystem::path file = module_folder() / concat(kPrefix, name, suffix());
  void* const module = platform::open_library(file.string());
  if (!module) {
    fail_as(ErrorCode::kDeviceLibrary, what, ": ", platform::library_error(),
            "; install the library that is missing, or name its folder in LD_LIBRARY_PATH");
  }
  void* const address = platform::find_symbol(module, function);
  if (!address) fail_as(ErrorCode::kDevice, what, ": ", file.string(), " has no function ", function);
  return address;
}

}  // namespace onnx_train
