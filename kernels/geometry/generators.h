// Operators whose output depends on sizes and scalars, not on the elements of a tensor, for the kernels of every
// device. Pure functions; any thread. They throw Error that names the node.
#pragma once

#include <functional>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// Operators whose output is known when the plan is built.
struct KnownRow {
  const char* op;
  std::function<bool(const NodeSpec&)> supports;
  std::function<Tensor(const NodeSpec&)> output;
};
const std::vector<KnownRow>& known_rows();  // Shape, Size, Constant, NonZero

// Returns the value of ConstantOfShape: one element of the output's type.
Tensor fill_value(const NodeSpec& spec);

// EyeLike: 1 where column - row = diagonal, 0 elsewhere.
struct Eye {
  int64_t rows, columns, diagonal;
};
Eye eye_of(const NodeSpec& spec);

// Range: y_i = start + i delta. The length depends on the contents of the inputs, which must be constant.
bool supports_range(const NodeSpec& spec);

}  // namespace onnx_train
