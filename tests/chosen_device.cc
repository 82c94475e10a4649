// The tests run on the device that the environment names: ONNX_TRAIN_TEST_DEVICE=async_host, or =cuda for the CUDA
// backend on the host (tests/cuda_on_host).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/cuda/device.h"
#include "tests/async_host_device.h"

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
};

[[maybe_unused]] testing::Environment* const kChosen = testing::AddGlobalTestEnvironment(new ChosenDevice);

}  // namespace
}  // namespace onnx_train
