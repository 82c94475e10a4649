// How a network reads what tells documents apart. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/data/data_arrays.h"
#include "runtime/data/dataset.h"

namespace onnx_train {

// Whether a mask of floats is 1 for tokens that are read, since the network computes 1 - mask or multiplies by it; else
// it is added to scores.
bool is_factor(const Model& model, const std::string& input);

// Adds notes for --packing that has no use for `path`, and for positions that go on over the documents of a row.
void note_packing(const std::string& path, const std::string& packing, const Model& model,
                  const std::vector<InputSpec>& inputs, DataArrays* data);

}  // namespace onnx_train
