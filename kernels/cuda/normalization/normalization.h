// The functions that prepare normalizations, by file.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

Prepared prepare_batch_inference(const NodeSpec& spec);  // batch_normalization.cu
Prepared prepare_batch_train(const NodeSpec& spec);
Prepared prepare_batch_gradient(const NodeSpec& spec);
Prepared prepare_batch_frozen_gradient(const NodeSpec& spec);
Prepared prepare_groups(const NodeSpec& spec);  // group_normalization.cu
Prepared prepare_groups_gradient(const NodeSpec& spec);
Prepared prepare_line_norm(const NodeSpec& spec);  // local_normalization.cu
Prepared prepare_local_response(const NodeSpec& spec);

}  // namespace onnx_train::cuda
