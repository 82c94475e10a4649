// Models whose floats are of 16 bits. Training keeps weights in float32, so importing widens all float16 and bfloat16
// tensors; what was of which type is kept as the model's metadata, and can be restored in what is exported. Functions
// on a model that one caller owns.
#pragma once

#include <map>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// By name, the 16-bit types that inputs, outputs and initializers of a file had.
using OriginalTypes = std::map<std::string, DType>;

// Makes every float16 and bfloat16 of the model a float32: inputs, initializers, constants, and the types that casts
// and random nodes name. Types of other values are inferred afterwards. Returns how many tensors were widened.
int64_t widen(Model* model);

// Removes casts that widening has left without a task. Types are inferred.
void remove_idle_casts(Graph* graph);

// After `widen` and what moved initializers since: keeps the original types as metadata of the model.
void record_original_types(Model* model);
OriginalTypes original_types(const Model& model);

// Gives inputs, outputs and initializers of an inference model their original types. A node that reads both 16-bit and
// 32-bit floats where it needs one type computes in 16 bits: constants are narrowed, values are cast.
void restore_types(Model* model, const OriginalTypes& types);

}  // namespace onnx_train
