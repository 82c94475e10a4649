#include "kernels/cpu/sampling/sampling.h"

#include "kernels/cpu/support/kernels.h"

namespace onnx_train::cpu {

std::vector<Kernel> sampling_kernels() {
  std::vector<Kernel> kernels = image_sampling_kernels();
  for (auto family : {region_kernels, suppression_kernels}) {
    for (Kernel& kernel : family()) kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace onnx_train::cpu
