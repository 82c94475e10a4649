// The Casts of many tensors to or from 16 bits that one node makes (lowering/merge_casts.cc). Pure functions; any
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

// The Casts of the node's body, from float32 to one 16-bit type or from one to float32; empty if the body is another.
std::vector<TensorCast> tensor_casts(const NodeSpec& spec);

}  // namespace onnx_train
