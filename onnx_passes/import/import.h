// The import of a forward model (import.cc lists its steps).
#pragma once

#include <vector>

#include "onnx_passes/ir/message.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {

struct Finding;  // model/analysis.h

// Imports a forward model into the form that the other passes expect: see import.cc. Throws Error with the reason if
// that is impossible. Adds to `findings`, if given, changes that the user should know.
Model import_model(onnx::ModelProto proto, const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr);
// The same of a loaded message, without copying its weights, which stay in mapped files.
Model import_model(ModelMessage message, const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr);

}  // namespace onnx_train
