// Clean-up passes.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Converts x[.., i, j, ..] with constant indices (GatherND between transposes) to a Gather on merged axes.
bool simplify_indexing(Model& model);

// Folds constants, merges equal nodes and removes dead ones, in the inference graph and every entry point.
bool simplify(Model& model);

}  // namespace onnx_train
