// Rewrites operators of opsets 7 to 20 for opset 21, in place, so that rules and kernels exist only once. Functions on
// a model that one caller owns.
//
// ONNX's own version converter drops training_info, functions and metadata and converts some operators wrongly. From
// opset 7 on, few operators changed in more than their types: a table lists them, and each row is tested by running the
// model before and after on another runtime.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

inline constexpr int64_t kOldestOpset = 7;
inline constexpr int64_t kBaseOpset = 21;

// Sets the opset of an older model to 21 and returns the opset in which its nodes are written; each of them must then
// pass `upgrade`. Throws Error for an opset before the oldest supported one.
int64_t raise_opset(Model* model);

// Rewrites one node written in opset `from`, whose input types are known, and returns the node that replaces it; its
// types are not inferred yet. Throws Error that names the node if an old definition has no equivalent.
Node* upgrade(Node* node, int64_t from);

}  // namespace onnx_train
