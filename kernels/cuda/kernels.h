// The families of CUDA kernels, joined in device.cc, named like the CPU's.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

std::vector<Kernel> convolution_kernels();
std::vector<Kernel> elementwise_kernels();
std::vector<Kernel> movement_kernels();
std::vector<Kernel> normalization_kernels();
std::vector<Kernel> pooling_kernels();
std::vector<Kernel> product_kernels();
std::vector<Kernel> reduction_kernels();

}  // namespace onnx_train::cuda
