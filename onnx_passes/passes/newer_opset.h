// Operators of opsets 27 and 28 rewritten for opset 26, the newest that ONNX Runtime runs. Few of them changed in more
// than the element types that they allow. Functions on a model that one caller owns.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

inline constexpr int64_t kNewestOpset = 28;   // that is read
inline constexpr int64_t kWrittenOpset = 26;  // the newest that is written

// Where the node's types are inferred and the model is of an opset after 26: gives it the form that opset 26 has for
// it. An operator that came later gives way to the nodes of its body. True when other nodes stand in its place; they
// are to be looked at, too. Throws Error that names a node for which opset 26 has no form.
bool rewrite_for_written_opset(Node* node);

// Says that a model of such an opset, all of whose nodes have been rewritten, is of the lowest opset from 21 on in
// which its operators mean the same. Throws Error that names a node whose element type opset 26 does not allow.
void lower_opset(Model* model);

}  // namespace onnx_train
