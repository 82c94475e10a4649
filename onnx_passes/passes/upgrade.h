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

// Brings the model, subgraphs included, to opset 21 and infers its types on the way; does nothing to later opsets.
// Throws Error that names the node where an old definition has no equal.
void upgrade(Model* model);

}  // namespace onnx_train
