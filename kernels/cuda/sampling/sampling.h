// Sampled images and regions on CUDA devices: the functions that prepare them, by file.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

Prepared prepare_sample_image(const NodeSpec& spec);  // sample_image.cu
Prepared prepare_sample_image_grad_input(const NodeSpec& spec);
Prepared prepare_sample_image_grad_points(const NodeSpec& spec);
Prepared prepare_roi_align(const NodeSpec& spec);  // regions.cu
Prepared prepare_roi_align_grad(const NodeSpec& spec);
Prepared prepare_roi_align_max_grad(const NodeSpec& spec);
Prepared prepare_select_boxes(const NodeSpec& spec);  // suppression.cu

}  // namespace onnx_train::cuda
