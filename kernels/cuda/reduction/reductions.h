// The functions that prepare reductions, by file.
#pragma once

#include "kernels/geometry/reductions.h"

namespace onnx_train::cuda {

Prepared prepare_sum(const NodeSpec& spec);  // sums.cu
// Sums an input of float32 or float64, or of 16-bit elements into float32, to an output.
Prepared prepare_sum_of(DType stored, const Shape& shape, const std::vector<bool>& is_reduced, int input = 0,
                        int output = 0);
Prepared prepare_mean(const NodeSpec& spec);
Prepared prepare_absolute_sum(const NodeSpec& spec);
Prepared prepare_square_sum(const NodeSpec& spec);
Prepared prepare_maximum(const NodeSpec& spec);  // extrema.cu
Prepared prepare_minimum(const NodeSpec& spec);
Prepared prepare_reduced_product(const NodeSpec& spec);  // norms.cu
Prepared prepare_norm(const NodeSpec& spec);
Prepared prepare_log_sum(const NodeSpec& spec);
Prepared prepare_log_sum_exp(const NodeSpec& spec);

}  // namespace onnx_train::cuda
