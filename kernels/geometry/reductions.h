// The axes and types of Reduce operators, for the kernels of every device. Pure functions; any thread.
#pragma once

#include <optional>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// Returns for each axis of input 0 whether input 1 names it; of a node, nothing if input 1 is no constant.
std::vector<bool> reduced_axes(const NodeSpec& spec);
std::optional<std::vector<bool>> reduced_axes(const Node& node);

// An axis of a tensor without axes of size 1, after merging neighbours that are all kept or all reduced. The innermost
// comes first.
struct ReductionAxis {
  int64_t size, stride;  // in elements
  bool reduced;
};
std::vector<ReductionAxis> merged_reduction_axes(const Shape& shape, const std::vector<bool>& is_reduced);

// Whether the axes are known before the node runs.
bool knows_reduced_axes(const NodeSpec& spec);
// Whether a Reduce node has known axes and numbers or, in reduces_ordered, numbers or bools, which have an order.
bool reduces_numbers(const NodeSpec& spec);
bool reduces_ordered(const NodeSpec& spec);

}  // namespace onnx_train
