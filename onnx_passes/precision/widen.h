// Models with 16-bit floats. Training keeps weights in float32, so importing widens all float16 and bfloat16 tensors;
// their original types are stored as metadata of the model and can be restored on export. Functions on a model that one
// caller owns.
#pragma once

#include <map>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The 16-bit types that inputs, outputs and initializers of a file had, by name.
using OriginalTypes = std::map<std::string, DType>;

// Converts every float16 and bfloat16 of the model to float32: inputs, initializers, constants, and the types that
// casts and random nodes name. Types of other values are inferred afterwards. Returns the number of widened tensors.
int64_t widen(Model* model);

// Removes casts that have no effect after widening. Types must be inferred.
void remove_idle_casts(Graph* graph);

// After `widen` and all changes of initializers: stores the original types as metadata of the model.
void record_original_types(Model* model);
OriginalTypes original_types(const Model& model);

// Restores the original types of inputs, outputs and initializers of an inference model. A node that requires one type
// but reads 16-bit and 32-bit floats computes in 16 bits: constants are narrowed, values are cast.
void restore_types(Model* model, const OriginalTypes& types);

}  // namespace onnx_train
