// Casts of many tensors to or from 16 bits in one node (kernels/lowering/fusion/merge_casts.cc). Pure functions; any
// thread.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// Positions of the operands of one Cast in the node, and its number of elements.
struct TensorCast {
  int input, output;
  int64_t size;
};

// Returns the Casts of the node's body, from float32 to one 16-bit type or back; empty if the body has another form.
std::vector<TensorCast> tensor_casts(const NodeSpec& spec);

}  // namespace onnx_train
