// The operations of fused programs: the loops of the element-wise operators (elementwise/loops.h), over blocks that fit
// the L1 cache. Any thread may call these functions.
#pragma once

#include "kernels/cpu/elementwise/loops.h"

namespace onnx_train::cpu {

constexpr int kMaxOperands = 8;

// The row of the node's element-wise operator; null if there is none.
const ElementwiseRow* find_elementwise_row(const Node& node);

// Returns the loop of a node that can_fuse accepts, over all operands. The result may overwrite one of the first two.
ElementwiseLoop fused_loop(const ElementwiseRow& row, const Node& node);

// Whether a fused program may contain the node: an element-wise operator with supported types, a reduction, a view or
// an Expand. The pass fuse_elementwise asks this function, so every node it makes can be prepared.
bool can_fuse(const Node& node);

}  // namespace onnx_train::cpu
