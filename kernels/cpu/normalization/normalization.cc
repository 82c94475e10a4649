#include "kernels/cpu/normalization/normalization.h"

#include "kernels/cpu/support/kernels.h"

namespace onnx_train::cpu {

std::vector<Kernel> normalization_kernels() {
  std::vector<Kernel> all;
  for (auto family : {layer_normalization_kernels, batch_normalization_kernels, group_normalization_kernels,
                      channels_last_group_normalization_kernels, local_normalization_kernels}) {
    for (Kernel& kernel : family()) all.push_back(std::move(kernel));
  }
  return all;
}

}  // namespace onnx_train::cpu
