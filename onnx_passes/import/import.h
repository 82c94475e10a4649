// Imports a loaded message without copying its weights, which stay in mapped files: the core of import_model
// (passes.h).
#pragma once

#include "onnx_passes/ir/message.h"
#include "onnx_passes/passes.h"

namespace onnx_train {

Model import_model(ModelMessage message, const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr);

}  // namespace onnx_train
