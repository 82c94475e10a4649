// Loading models the way subcommands need them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/passes/passes.h"
#include "runtime/build_settings.h"
#include "runtime/dataset.h"
#include "tools/subcommand.h"

namespace onnx_train {

// A forward model, imported: see passes.h and build_settings.h. What importing has to tell is added to `findings`, if
// given.
Model load_forward_model(const std::string& path, const std::string& dtype = "float32",
                         const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr);

// A training model, verified and as it is; any other model, imported and in inference form, whatever mode it was
// exported in. What can be run: predict, show --plan.
Model load_any_model(const std::string& path);

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
