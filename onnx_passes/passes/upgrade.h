// Operators of opsets 7 to 20 rewritten for opset 21, in place, so that rules and kernels are written once.
//
// ONNX's own version converter drops training_info, functions and metadata and converts some operators wrongly. From
// opset 7 on, few operators changed in more than their types: a table names them, and each row is tested by running
// the model before and after on another runtime.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

inline constexpr int64_t kOldestOpset = 7;
inline constexpr int64_t kBaseOpset = 21;

// Says that the model is of opset 21, where it is of an earlier one, and returns the opset that its nodes are written
// in: each of them must go through `upgrade` then. Throws Error for an opset before the oldest.
int64_t raise_opset(Model* model);

// Rewrites one node that is written in opset `from`, the types of whose inputs are known, and returns the node that
// stands for it then; its types are yet to be inferred. Throws Error that names the node where an old definition has no
// equal.
Node* upgrade(Node* node, int64_t from);

}  // namespace onnx_train
