// Einsum, for the kernels of every device. From left to right, two operands at a time become a batch of matrix
// products. Each operand is first brought into the order [batch, own indices, summed indices]; this also extracts
// diagonals and sums over indices that neither a later operand nor the output has. Any thread.
#pragma once

#include <functional>
#include <vector>

#include "kernels/geometry/products.h"

namespace onnx_train {

// to[i] = Σ over r of from[offset of i + offset of r]: i runs over the axes `kept`, r over `reduced`, both in row-major
// order. Strides are in elements of `from`; `to` is contiguous.
struct Arrangement {
  struct Axis {
    int64_t size, stride;
  };
  std::vector<Axis> kept, reduced;  // the outermost first
};

// The kernels that a device supplies: of an arrangement of numbers, and of a product of inputs 0 and 1 into output 0,
// all of the node's type.
using Arrange = std::function<void(const Launch&, const void* from, void* to)>;
using PrepareArrangement = Arrange (*)(DType, const Arrangement&);
using PrepareProduct = Prepared (*)(const NodeSpec&, const Product&);

// Throws Error that names the node if its shapes do not fit its equation.
Prepared prepare_einsum(const NodeSpec& spec, PrepareArrangement arrangement, PrepareProduct product);

}  // namespace onnx_train
