// A file's name is a hash of its key. A file is written under another name first, and starts with a hash of its
// content, so that nobody reads a truncated or damaged one.
#include "kernels/cuda/support/cache.h"

#include <unistd.h>
#include <xxhash.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return value ? std::string(value) : std::string();
  };
  if (const std::string folder = variable("ONNX_TRAIN_CACHE"); !folder.empty()) return folder;
  if (const std::string folder = variable("XDG_CACHE_HOME"); !folder.empty()) return fs::path(folder) / "onnx-train";
  if (const std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".cache" / "onnx-train";
  return std::nullopt;
}

constexpr size_t kHashDigits = 32;

// Returns kHashDigits hexadecimal digits.
std::string hash_of(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[kHashDigits + 1];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

fs::path path_of(const fs::path& folder, const std::string& kind, const std::string& key) {
  return folder / "cuda" / (hash_of(key) + "." + kind);
}

}  // namespace

std::optional<std::string> read_cached(const std::string& kind, const std::string& key) {
  const std::optional<fs::path> folder = cache_folder();
  if (!folder) return std::nullopt;
  std::ifstream file(path_of(*folder, kind, key), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() <= kHashDigits) return std::nullopt;
  std::string content = text.substr(kHashDigits);
  return hash_of(content) == text.substr(0, kHashDigits) ? std::optional(std::move(content)) : std::nullopt;
}

void write_cached(const std::string& kind, const std::string& key, const std::string& content) {
  const std::optional<fs::path> folder = cache_folder();
  if (!folder) return;
  const fs::path path = path_of(*folder, kind, key);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path partial = concat(path.string(), ".", gettid());
  std::ofstream file(partial, std::ios::binary);
  file << hash_of(content) << content;
  file.close();
  if (file) fs::rename(partial, path, error);
  if (!file || error) fs::remove(partial, error);
}

}  // namespace onnx_train::cuda
