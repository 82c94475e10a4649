// Generated kernels on the host. The C++ compiler makes a shared library of a kernel's text; the library's path is the
// image that the runtime loads (runtime.cc). Libraries stay in the build folder, named by a hash of the text and of the
// files that texts include. A test program has about a thousand, so this is short work: a precompiled header, and a
// link with the machine alone, because the program has the standard library.
#include <unistd.h>
#include <xxhash.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "kernels/cuda/fused/compiler.h"
#include "kernels/cuda/fused/nvrtc.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

namespace fs = std::filesystem;

// The end of a kernel's file: the number of its parameters, all of which have 8 bytes, which of them are addresses, and
// its launch.
constexpr const char* kEnd = R"(
#include <utility>
template <typename... Parameters>
void run_with(void (*kernel)(Parameters...), dim3 grid, dim3 block, void* const* arguments) {
  gpu_host::run_grid(grid, block, 0, [=] {
    [&]<size_t... kAt>(std::index_sequence<kAt...>) {
      kernel((Parameters)arguments[kAt]...);
    }(std::index_sequence_for<Parameters...>());
  });
}
template <typename... Parameters>
constexpr int count(void (*)(Parameters...)) { return sizeof...(Parameters); }
template <typename Kernel>
struct Addresses;
template <typename... Parameters>
struct Addresses<void (*)(Parameters...)> {
  bool at[sizeof...(Parameters)] = {std::is_pointer_v<Parameters>...};
};
extern "C" __attribute__((visibility("default"))) const Addresses<decltype(&fused)> fused_addresses{};
extern "C" __attribute__((visibility("default"))) const int fused_parameters = count(fused);
extern "C" __attribute__((visibility("default"))) void run_fused(dim3 grid, dim3 block, void* const* arguments) {
  run_with(fused, grid, block, arguments);
}
)";

// Runs the compiler with `arguments`, which name a file that it writes in `folder`, and moves that file to `to`. Other
// processes and threads may do the same.
void compile(const std::string& arguments, const fs::path& folder, const char* file, const fs::path& to) {
  const std::string log = (folder / "log").string();
  const std::string command =
      concat(HOST_COMPILER, " -std=c++20 -O1 -w -fPIC -fvisibility=hidden ", SANITIZERS,
             " '-DGPU_ON_HOST=\"tests/cuda_on_host/gpu_on_host.h\"' ", arguments, " -I", SUBSTITUTES, " -I", SOURCES,
             " -isystem ", CUDA_HEADERS, " -o ", (folder / file).string(), " > ", log, " 2>&1");
  if (std::system(command.c_str()) != 0) fail("a generated kernel does not compile: ", log);
  fs::create_directories(to.parent_path());
  fs::rename(folder / file, to);
  fs::remove_all(folder);
}

fs::path new_folder(const fs::path& beside) {
  const fs::path folder = concat(beside.string(), ".", gettid());
  fs::create_directories(folder);
  return folder;
}

// Returns the precompiled header of all kernels, which the compiler finds before the header itself.
fs::path precompiled(const std::string& key) {
  constexpr const char* kHeader = "kernels/cuda/fused/generated.h";
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const fs::path folder = fs::path(GENERATED_KERNELS) / key, to = folder / concat(kHeader, ".gch");
  if (!fs::exists(to)) compile(concat("-x c++-header ", SOURCES, "/", kHeader), new_folder(folder), "header", to);
  return folder;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string hash_of(const std::string& text) { return std::to_string(XXH3_64bits(text.data(), text.size())); }

}  // namespace

std::string compile_kernel(const std::string& text, const std::string&) {
  static const std::string headers = hash_of(embedded_headers() + text_of(SOURCES "/tests/cuda_on_host/gpu_on_host.h"));
  const fs::path path = fs::path(GENERATED_KERNELS) / concat(hash_of(headers + text + kEnd), ".so");
  if (fs::exists(path)) return path.string();
  const fs::path include = precompiled(headers), folder = new_folder(path);
  const std::string source = (folder / "fused.cc").string();
  std::ofstream(source) << text << kEnd;
  compile(concat("-shared -nodefaultlibs -I", include.string(), " ", source, " ", GPU_MACHINE), folder, "fused.so",
          path);
  return path.string();
}

}  // namespace onnx_train::cuda
