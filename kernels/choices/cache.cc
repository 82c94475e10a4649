// A file's name is a hash of its key. A file is written under another name first, and starts with a hash of its
// content, so that nobody reads a truncated or damaged one.
#include "kernels/choices/cache.h"

#include <xxhash.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "onnx_passes/ir/error.h"
#include "platform/file.h"
#include "platform/process.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashDigits = 32;

fs::path path_of(const fs::path& folder, const CacheEntry& entry) {
  return folder / entry.backend / (hash_of(entry.key) + "." + entry.kind);
}

}  // namespace

std::optional<std::string> cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return value ? std::string(value) : std::string();
  };
  if (std::string folder = variable("ONNX_TRAIN_CACHE"); !folder.empty()) return folder;
  if (const std::string folder = variable("XDG_CACHE_HOME"); !folder.empty()) return folder + "/onnx-train";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/onnx-train";
  return std::nullopt;
}

std::string hash_of(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[kHashDigits + 1];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

std::optional<std::string> read_cached(const CacheEntry& entry) {
  const std::optional<std::string> folder = cache_folder();
  if (!folder) return std::nullopt;
  std::ifstream file(path_of(*folder, entry), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() <= kHashDigits) return std::nullopt;
  std::string content = text.substr(kHashDigits);
  return hash_of(content) == text.substr(0, kHashDigits) ? std::optional(std::move(content)) : std::nullopt;
}

std::optional<std::string> keep_cached(const CacheEntry& entry, const std::string& content) {
  const std::optional<std::string> folder = cache_folder();
  if (!folder) return std::nullopt;
  const fs::path path = path_of(*folder, entry);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path partial = concat(path.string(), ".", platform::process_id(), ".", platform::thread_id());
  std::ofstream file(partial, std::ios::binary);
  file << hash_of(content) << content;
  file.close();
  std::optional<std::string> kept;
  if (file) {
    // A link is made only where there is no file.
    fs::create_hard_link(partial, path, error);
    if (error) kept = read_cached(entry);
    // The file there is damaged, or the file system has no links.
    if (error && !kept) fs::rename(partial, path, error);
    if (!error && !kept) kept = content;
  }
  fs::remove(partial, error);
  return kept;
}

bool has_cache(const std::string& backend) {
  const std::optional<std::string> folder = cache_folder();
  if (!folder) return false;
  std::error_code error;
  const fs::path own = fs::path(*folder) / backend;
  fs::create_directories(own, error);
  return fs::is_directory(own, error) && platform::may_write_into(own.string());
}

}  // namespace onnx_train
