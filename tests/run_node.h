// Runs one node on the CPU's kernel for it, outside of any plan: for tests of kernels alone.
#pragma once

#include "onnx_passes/ir/builder.h"

namespace onnx_train {

// The node's outputs. A default-constructed tensor stands for an input left out. Throws Error when no kernel supports
// the node.
std::vector<Tensor> run_node(const std::string& op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                             int num_outputs = 1, const std::string& domain = "");

// Values drawn from [-1, 1], the same for each call with the same arguments.
Tensor random_tensor(DType dtype, Shape shape, unsigned seed = 1);

// The largest difference of two tensors, relative to the largest element of `expected`; infinite when shapes differ.
double relative_error(const Tensor& actual, const Tensor& expected);

}  // namespace onnx_train
