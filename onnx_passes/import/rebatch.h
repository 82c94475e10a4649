// Changes the batch size of a model that was exported for a fixed one, to another number or to a symbol. A function on
// a model that one caller owns.
#pragma once

#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The batch is the first dimension of the first input, and of every input with the same first dimension. `batch` is a
// number or "dynamic" (the symbol "batch"). Constants that contain the old size, in the targets of Reshape, Expand and
// similar operators, are rewritten if it is provable which of their numbers is the batch. Types are inferred again.
// Throws Error that names the node if it is not provable, or if the model does not work with another batch.
// Keeps a fixed size that the file had as metadata kExportedBatch.
void rebatch(Model* model, const std::string& batch);

inline constexpr const char* kExportedBatch = "onnx_train.exported_batch";

}  // namespace onnx_train
