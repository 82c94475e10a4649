// Preparing a kernel for a node: where whatever a kernel finds wrong becomes an Error that names the node. Called while
// a plan is built, or constants are folded; from any thread, for nodes of different graphs.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train {

// kernel.prepare(spec), for a kernel that find_kernel has found. Throws Error.
Prepared prepare(const Kernel& kernel, const NodeSpec& spec);

}  // namespace onnx_train
