// The tests run on the device that the environment names: ONNX_TRAIN_TEST_DEVICE=async_host, or =cuda for the CUDA
// backend, on the host (tests/cuda_on_host) or, in gpu_tests, on a GPU. On the host a list of the kernels that ran is
// left in TEST_TMPDIR, for cuda_on_host/kernels_executed.py and launches_fit.py.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "kernels/cuda/support/device.h"
#include "tests/support/async_host_device.h"
#ifdef GPU_ON_HOST
#include "tests/cuda_on_host/runtime.h"
#endif

namespace onnx_train {
namespace {

class ChosenDevice : public testing::Environment {
 public:
  void SetUp() override {
    const char* value = std::getenv("ONNX_TRAIN_TEST_DEVICE");
    const std::string name = value ? value : "";
    if (name == "async_host") {
      static AsyncHostDevice device({.most_microseconds = 0});
      set_default_device(device);
    } else if (name == "cuda") {
      set_default_device(cuda_device());
    }
  }

#ifdef GPU_ON_HOST
  // Lines of a kernel's address in this program, the number of its runs, and what its largest block had.
  void TearDown() override {
    if (gpu_host::launches().empty()) return;
    std::ofstream list(testing::TempDir() + "kernels_executed");
    for (const auto& [kernel, of] : gpu_host::launches()) {
      Dl_info program;
      if (kernel && dladdr(kernel, &program)) {
        list << static_cast<const char*>(kernel) - static_cast<const char*>(program.dli_fbase) << ' ' << of.runs << ' '
             << of.most_threads << ' ' << of.most_shared << '\n';
      }
    }
  }
#endif
};

[[maybe_unused]] testing::Environment* const kChosen = testing::AddGlobalTestEnvironment(new ChosenDevice);

}  // namespace
}  // namespace onnx_train
