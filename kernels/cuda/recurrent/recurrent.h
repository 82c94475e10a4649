#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

std::vector<Kernel> lstm_kernels();
std::vector<Kernel> gru_kernels();
std::vector<Kernel> rnn_kernels();

}  // namespace onnx_train::cuda
