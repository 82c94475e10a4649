// Where a Resize has a scale that makes no whole number of elements, such as 1.7 of 4: ONNX's definition takes the
// fraction for the size of the output where coordinates are proportional to it, 6.8 elements of which 6 are there;
// PyTorch, and ONNX Runtime, take the 6. One caller owns the model.
#pragma once

#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/model/analysis.h"

namespace onnx_train {

// In a file of PyTorch's exporters such scales become sizes, which have one meaning; in other files they stay. Returns
// what was done, or how the numbers differ, for each such node.
std::vector<Finding> settle_resize_scales(Model* model);

}  // namespace onnx_train
