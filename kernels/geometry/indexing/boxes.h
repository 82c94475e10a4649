// The elements that data movement operators move, for the kernels of every device: each operator is a few strided
// copies, which its node and the shapes determine. Pure functions; any thread. They throw Error that names the node.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// One axis of a box: its size, and its strides in two layouts, in elements. Strides may be negative and, in `from`, 0
// (repeat).
struct CopyAxis {
  int64_t size;
  int64_t from;
  int64_t to;
};

// Drops axes of size 1, sorts by decreasing stride in `to`, and merges axes that are contiguous in both layouts.
std::vector<CopyAxis> merge_axes(std::vector<CopyAxis> axes);

// A copy of a box of elements; offsets of the first element are in elements.
struct BoxCopy {
  std::vector<CopyAxis> axes;
  int input = 0;
  int64_t from = 0;
  int output = 0;
  int64_t to = 0;
};

struct Movement {
  std::vector<BoxCopy> copies;
  bool zeros_first = false;  // output 0 is zero where no copy writes
};

struct MovementRow {
  const char* op;
  std::function<bool(const NodeSpec&)> supports;
  std::function<Movement(const NodeSpec&)> describe;
  const char* domain = "";
};

// Reshape, Transpose, Expand, Concat, Split, Slice, ...: one row per operator.
const std::vector<MovementRow>& movement_rows();

// Strides of a dense tensor in row-major order, in elements.
Shape dense_strides(const Shape& shape);

}  // namespace onnx_train
