#include "kernels/cuda/recurrent/recurrent.h"

#include "kernels/cuda/support/kernels.h"

namespace onnx_train::cuda {

std::vector<Kernel> recurrent_kernels() {
  std::vector<Kernel> all;
  for (auto family : {lstm_kernels, gru_kernels, rnn_kernels}) {
    for (Kernel& kernel : family()) all.push_back(std::move(kernel));
  }
  return all;
}

}  // namespace onnx_train::cuda
