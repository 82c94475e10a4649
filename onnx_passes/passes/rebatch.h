// A model that was exported for one batch size made to run with another, or with any.
#pragma once

#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The batch is the first dimension of the first input, and of every input that has the same first dimension. `batch`
// is a number or "dynamic" (the symbol "batch"). Constants that hold the old size, in the targets of Reshape, Expand
// and their like, are rewritten where it is provable which of their numbers is the batch. Types are inferred anew.
// Throws Error that names the node where it is not provable, or where the model does not run with another batch.
void rebatch(Model* model, const std::string& batch);

}  // namespace onnx_train
