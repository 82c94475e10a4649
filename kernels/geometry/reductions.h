// What the Reduce operators reduce, for the kernels of every device. Pure functions; any thread.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// Whether each axis of input 0 is reduced, by the axes of input 1.
std::vector<bool> reduced_axes(const NodeSpec& spec);

// The axes of a tensor without those of size 1; neighbours that are both kept or both reduced are one axis. The
// innermost comes first.
struct ReductionAxis {
  int64_t size, stride;  // in elements
  bool reduced;
};
std::vector<ReductionAxis> merged_reduction_axes(const Shape& shape, const std::vector<bool>& is_reduced);

// Whether a Reduce node has known axes and numbers; or numbers or bools, which have a maximum and a minimum.
bool reduces_numbers(const NodeSpec& spec);
bool reduces_ordered(const NodeSpec& spec);

}  // namespace onnx_train
