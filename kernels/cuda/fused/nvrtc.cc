#include "kernels/cuda/fused/nvrtc.h"

#include <dlfcn.h>
#include <nvrtc.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/fused/embedded.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

// The library's functions, found at run time: a program linked with the library would not start without it.
struct Library {
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcVersion) version = nullptr;

  Library() : handle_(open_nvrtc("libnvrtc.so.13")) {
    find("nvrtcCreateProgram", &create);
    find("nvrtcDestroyProgram", &destroy);
    find("nvrtcCompileProgram", &compile);
    find("nvrtcGetCUBINSize", &cubin_size);
    find("nvrtcGetCUBIN", &cubin);
    find("nvrtcGetProgramLogSize", &log_size);
    find("nvrtcGetProgramLog", &log);
    find("nvrtcGetErrorString", &error_string);
    find("nvrtcVersion", &version);
    // NVRTC loads this library by name when it compiles, but its folder may not be on the search path.
    int major = 0, minor = 0;
    if (version(&major, &minor) == NVRTC_SUCCESS)
      dlopen(concat("libnvrtc-builtins.so.", major, ".", minor).c_str(), RTLD_NOW | RTLD_GLOBAL);
  }

 private:
  template <typename F>
  void find(const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(handle_, name));
    if (!*function) fail_as(ErrorCode::kDevice, "NVRTC: libnvrtc.so.13 has no function ", name);
  }

  void* const handle_;
};

const Library& library() {
  static const Library the;
  return the;
}

void check_nvrtc(nvrtcResult result, const char* call) {
  if (result != NVRTC_SUCCESS) fail_as(ErrorCode::kDevice, "NVRTC: ", call, ": ", library().error_string(result));
}

struct Destroy {
  void operator()(nvrtcProgram program) const { library().destroy(&program); }
};
using Program = std::unique_ptr<std::remove_pointer_t<nvrtcProgram>, Destroy>;

std::string log_of(nvrtcProgram program) {
  size_t size = 0;
  if (library().log_size(program, &size) != NVRTC_SUCCESS || size == 0) return "";
  std::string text(size, '\0');
  library().log(program, text.data());
  return std::string(text.c_str());
}

}  // namespace

void* open_nvrtc(const char* file) {
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle) return handle;
  fail_as(
      ErrorCode::kDeviceLibrary, "device 'cuda': ", dlerror(),
      "; NVRTC compiles its kernels: pip install nvidia-cuda-nvrtc, or install NVIDIA's toolkit and name the folder "
      "of its libraries in LD_LIBRARY_PATH");
}

std::string nvrtc_version() {
  int major = 0, minor = 0;
  check_nvrtc(library().version(&major, &minor), "nvrtcVersion");
  return concat(major, ".", minor);
}

std::string compile_with_nvrtc(const std::string& text, const std::string& architecture) {
  std::vector<const char*> names, texts;
  for (size_t i = 0; i < kNumEmbeddedFiles; ++i) {
    names.push_back(kEmbeddedFiles[i].name);
    texts.push_back(kEmbeddedFiles[i].text);
  }
  nvrtcProgram created = nullptr;
  check_nvrtc(
      library().create(&created, text.c_str(), "fused.cu", static_cast<int>(names.size()), texts.data(), names.data()),
      "nvrtcCreateProgram");
  const Program program(created);
  const std::string target = "--gpu-architecture=" + architecture;
  // Warning 186: formulas for all number types compare unsigned numbers with zero, too.
  const char* const options[] = {target.c_str(), "--std=c++20", "--device-as-default-execution-space",
                                 "--diag-suppress=186"};
  const nvrtcResult result = library().compile(program.get(), static_cast<int>(std::size(options)), options);
  if (result != NVRTC_SUCCESS) {
    const std::string log = log_of(program.get());
    fail_as(ErrorCode::kDevice, "a generated kernel: ", library().error_string(result), ": ",
            log.substr(0, log.find('\n')));
  }
  size_t size = 0;
  check_nvrtc(library().cubin_size(program.get(), &size), "nvrtcGetCUBINSize");
  std::string image(size, '\0');
  check_nvrtc(library().cubin(program.get(), image.data()), "nvrtcGetCUBIN");
  return image;
}

const std::string& embedded_headers() {
  static const std::string all = [] {
    std::string text;
    for (size_t i = 0; i < kNumEmbeddedFiles; ++i) text += concat(kEmbeddedFiles[i].name, "\n", kEmbeddedFiles[i].text);
    return text;
  }();
  return all;
}

}  // namespace onnx_train::cuda
