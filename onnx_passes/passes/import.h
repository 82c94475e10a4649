// Importing a model whose weights stay where they are, in mapped files: passes.h's import_model of a loaded message.
#pragma once

#include "onnx_passes/ir/message.h"

namespace onnx_train {

Model import_model(ModelMessage message, const std::string& batch = "");

}  // namespace onnx_train
