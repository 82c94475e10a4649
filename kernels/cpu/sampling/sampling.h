// Kernel rows of the family "sampling", by file.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

std::vector<Kernel> image_sampling_kernels();  // sample_image.cc: GridSample, SampleImage and its gradients
std::vector<Kernel> suppression_kernels();     // suppression.cc: SelectBoxes, of NonMaxSuppression
std::vector<Kernel> region_kernels();          // regions.cc: RoiAlign, MaxRoiPool and their gradients

}  // namespace onnx_train::cpu
