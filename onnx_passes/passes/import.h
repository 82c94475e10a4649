// Importing a model whose weights stay where they are, in mapped files: passes.h's import_model of a loaded message.
#pragma once

#include "onnx_passes/ir/message.h"
#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Model import_model(ModelMessage message, const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr);

}  // namespace onnx_train
