// The functions that prepare reductions, by file. Each file takes a compiler about 15 seconds.
#pragma once

#include "kernels/geometry/reductions.h"

namespace onnx_train::cpu {

Prepared prepare_sum(const NodeSpec& spec);  // sums.cc
Prepared prepare_mean(const NodeSpec& spec);
Prepared prepare_log_sum(const NodeSpec& spec);
Prepared prepare_absolute_sum(const NodeSpec& spec);
Prepared prepare_square_sum(const NodeSpec& spec);  // norms.cc
Prepared prepare_norm(const NodeSpec& spec);
Prepared prepare_reduced_product(const NodeSpec& spec);
Prepared prepare_log_sum_exp(const NodeSpec& spec);
Prepared prepare_maximum(const NodeSpec& spec);  // extrema.cc
Prepared prepare_minimum(const NodeSpec& spec);

}  // namespace onnx_train::cpu
