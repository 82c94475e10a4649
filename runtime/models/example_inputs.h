// The sizes and inputs on which a model is run when there are no data. Pure functions; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/passes.h"
#include "runtime/data/dataset.h"
#include "runtime/models/build_settings.h"

namespace onnx_train {

// Concrete shapes for inputs whose dimensions are symbols: `sizes` gives NAME=N (a symbol's or, for the first dimension
// of every input, "batch"), else `batch` for first dimensions and 8 for others. Throws Error for a name that no input
// has as a dimension.
std::map<std::string, Shape> example_shapes(const std::vector<InputSpec>& inputs, int64_t batch,
                                            const std::vector<std::string>& sizes);

// Throws Error unless `text` is NAME=N: what --dim takes.
void check_size(const std::string& text);

// Something to run a model on: floats between -1 and 1, zeros for integers, which name an element of anything.
TensorMap example_batch(const std::vector<InputSpec>& inputs, const std::map<std::string, Shape>& shapes);

}  // namespace onnx_train
