// The families of CUDA kernels, named like the CPU's and joined in device.cc.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

std::vector<Kernel> attention_kernels();
std::vector<Kernel> cast_kernels();
std::vector<Kernel> collective_kernels();
std::vector<Kernel> convolution_kernels();
std::vector<Kernel> determinant_kernels();
std::vector<Kernel> elementwise_kernels();
std::vector<Kernel> gather_kernels();
std::vector<Kernel> movement_kernels();
std::vector<Kernel> normalization_kernels();
std::vector<Kernel> pooling_kernels();
std::vector<Kernel> product_kernels();
std::vector<Kernel> quantize_kernels();
std::vector<Kernel> recurrent_kernels();
std::vector<Kernel> reduction_kernels();
std::vector<Kernel> scatter_kernels();
std::vector<Kernel> generator_kernels();
std::vector<Kernel> lookup_kernels();
std::vector<Kernel> pad_trilu_reverse_kernels();
std::vector<Kernel> resampling_kernels();
std::vector<Kernel> sampling_kernels();
std::vector<Kernel> scaled_product_kernels();
std::vector<Kernel> scan_kernels();
std::vector<Kernel> extremum_kernels();
std::vector<Kernel> top_k_kernels();
std::vector<Kernel> sparse_update_kernels();
std::vector<Kernel> softmax_kernels();
std::vector<Kernel> row_normalization_kernels();
std::vector<Kernel> loss_kernels();
std::vector<Kernel> random_kernels();
std::vector<Kernel> optimizer_kernels();

}  // namespace onnx_train::cuda
