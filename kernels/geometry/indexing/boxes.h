// Which elements the operators move that rearrange their inputs, for the kernels of every device: each operator is a
// few strided copies, which its node and the shapes describe. Pure functions; any thread. They throw Error that names
// the node.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// One axis of a box: its size and its strides in the two layouts, in elements. Strides may be 0 (repeat) in `from` and
// negative in both.
struct CopyAxis {
  int64_t size;
  int64_t from;
  int64_t to;
};

// Returns the axes without those of size 1, sorted by decreasing stride in `to`; axes that are contiguous in both
// layouts become one.
std::vector<CopyAxis> merge_axes(std::vector<CopyAxis> axes);

// A copy of a box of elements; the offsets of its first element are in elements.
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

// Strides, in elements, of a dense tensor in row-major order.
Shape dense_strides(const Shape& shape);

}  // namespace onnx_train
