// Rewrites operators of opsets 27 and 28 for opset 26, the newest that ONNX Runtime runs. Most of them changed only in
// the element types that they allow. Functions on a model that one caller owns.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

inline constexpr int64_t kNewestOpset = 28;   // that is read
inline constexpr int64_t kWrittenOpset = 26;  // the newest that is written

// Converts a node of a model with an opset after 26, whose types are inferred, to its form in opset 26. A newer
// operator is replaced by the nodes of its body. Returns true if other nodes have replaced it; these must be visited,
// too. Throws Error that names a node for which opset 26 has no form.
bool rewrite_for_written_opset(Node* node);

// Sets the opset of a model, all of whose nodes have been rewritten, to the lowest one from 21 on in which its
// operators have the same meaning. Throws Error that names a node with an element type that opset 26 does not allow.
void lower_opset(Model* model);

}  // namespace onnx_train
