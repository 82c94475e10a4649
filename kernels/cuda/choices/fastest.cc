#include "kernels/cuda/choices/fastest.h"

#include <map>
#include <mutex>

#include "kernels/cuda/choices/difference.h"
#include "kernels/cuda/choices/noise.h"
#include "kernels/cuda/support/device.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/runtime.h"
#include "kernels/registry.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

constexpr double kMostSeconds = 10, kMilliseconds = 50;

// Names the current device and its driver.
std::string hardware() {
  int driver = 0;
  cudaDeviceProp device = {};
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaGetDeviceProperties(&device, current_device()), "cudaGetDeviceProperties");
  return concat(device.name, "\n", driver);
}

// Of the current device. It is kept, because the driver takes milliseconds for the device's name.
const Track& track() {
  static std::mutex mutex;
  static auto& tracks = *new std::map<int, Track>;  // by device
  const std::lock_guard lock(mutex);
  const int number = current_device();
  auto found = tracks.find(number);
  if (found == tracks.end()) {
    found = tracks
                .emplace(number, Track{&cuda_device(number), "cuda", hardware(), kMostSeconds, kMilliseconds,
                                       /*must_keep=*/false, fill_with_noise, set_bytes, relative_difference})
                .first;
  }
  return found->second;
}

}  // namespace

Prepared fastest(const NodeSpec& spec, const std::string& library, const std::vector<Form>& forms,
                 const SetInputs& set_inputs) {
  return onnx_train::fastest(track(), spec, {library, computation_of(spec)}, forms, set_inputs);
}

}  // namespace onnx_train::cuda
