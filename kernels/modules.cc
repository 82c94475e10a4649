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

// The folder of the library or program that contains this code, and the one below it in which installations have
// modules (cmake/library.cmake).
std::vector<std::filesystem::path> module_folders() {
  const std::string own = platform::file_of(reinterpret_cast<const void*>(&module_names));
  if (own.empty()) return {""};
  std::error_code error;
  const auto file = std::filesystem::canonical(own, error);
  if (error) return {""};
  return {file.parent_path(), file.parent_path() / "onnx-train"};
}

}  // namespace

std::vector<std::string> module_names() {
  std::vector<std::string> names;
  for (const std::filesystem::path& folder : module_folders()) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string file = entry.path().filename().string();
      if (!file.starts_with(kPrefix) || !file.ends_with(suffix())) continue;
      names.push_back(file.substr(kPrefix.size(), file.size() - kPrefix.size() - suffix().size()));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void* module_function(const std::string& name, const char* function, const std::string& what) {
  const std::vector<std::filesystem::path> folders = module_folders();
  std::filesystem::path file = folders.front() / concat(kPrefix, name, suffix());
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    const std::filesystem::path installed = folders.back() / file.filename();
    if (std::filesystem::exists(installed, error)) file = installed;
  }
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
