// A model for tests that build their graph by hand.
#pragma once

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

// Without inputs, nodes and outputs, in the opset that imported models have.
inline Model empty_model() {
  Model model;
  model.shell().set_ir_version(10);
  model.context->opsets[""] = 21;
  return model;
}

}  // namespace onnx_train
