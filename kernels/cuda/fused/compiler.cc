// The compiler of the released program: NVRTC with a cache folder: $ONNX_TRAIN_CACHE, else $XDG_CACHE_HOME/onnx-train,
// else ~/.cache/onnx-train. A file's name is a hash of everything that the image depends on. It is written under
// another name first and starts with a hash of its content, so that truncated or damaged files are compiled again.
// Without such a folder every process compiles for itself.
#include "kernels/cuda/fused/compiler.h"

#include <unistd.h>
#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "kernels/cuda/fused/nvrtc.h"
#include "kernels/cuda/support/runtime.h"
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

// Returns 32 hexadecimal digits.
std::string hash_of(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

constexpr size_t kHashDigits = 32;

std::optional<std::string> read_image(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(file), {});
  if (content.size() <= kHashDigits) return std::nullopt;
  std::string image = content.substr(kHashDigits);
  return hash_of(image) == content.substr(0, kHashDigits) ? std::optional(std::move(image)) : std::nullopt;
}

// A failure to keep an image costs only time.
void write_image(const fs::path& path, const std::string& image) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path partial = concat(path.string(), ".", gettid());
  std::ofstream file(partial, std::ios::binary);
  file << hash_of(image) << image;
  file.close();
  if (file) fs::rename(partial, path, error);
  if (!file || error) fs::remove(partial, error);
}

}  // namespace

std::string compile_kernel(const std::string& text, const std::string& architecture) {
  const std::optional<fs::path> folder = cache_folder();
  if (!folder) return compile_with_nvrtc(text, architecture);
  const fs::path path =
      *folder / "cuda" /
      (hash_of(concat(architecture, " ", nvrtc_version(), "\n", embedded_headers(), text)) + ".cubin");
  if (std::optional<std::string> image = read_image(path)) return *image;
  const std::string image = compile_with_nvrtc(text, architecture);
  write_image(path, image);
  return image;
}

}  // namespace onnx_train::cuda
