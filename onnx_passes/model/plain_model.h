// An entry point for other runtimes. A pure function; any thread.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// As flatten (flatten.h), but the states of kPredict are inputs, too, whose values are their defaults: a program that
// trains gives its own weights, one that does not gives none.
Model plain_model(const Model& model, const EntryName& entry);

}  // namespace onnx_train
