// The optimizer as one node.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The updates of all weights (Sgd, Adam, AdamW) become one call of a function Updates; see merge_updates.cc for those
// that stay out.
bool merge_updates(Model& model);

}  // namespace onnx_train
