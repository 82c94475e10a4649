// The reference of a training on preferences (loss/pairs.h): the model as it is before its first step. A pure function
// on a model after the training mode; throws Error.
#pragma once

#include <string>

#include "onnx_passes/loss/pairs.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {

// The inference graph without adapters of low rank, with the one output `logits`. It shares the contents of its
// weights. Values are rounded as a step of this precision rounds them, products with weights in 8 bits excepted, which
// are rounded to 16.
Model reference_model(const Model& model, const std::string& logits, Precision precision);

// The same for the loss pass of these options.
MakeReference reference_maker(const BuildOptions& options);

}  // namespace onnx_train
