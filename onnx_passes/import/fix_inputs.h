// Turns inputs that only select a mode into constants: `--set sr=16000`. A function on a model that one caller owns.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Each of `settings` is NAME=VALUE, or NAME=VALUE:VALUE:... for an input with one axis. The input becomes a constant of
// the same name. Throws Error for a malformed setting, an unknown input, and a value that does not fit the input's type
// or shape.
void fix_inputs(Graph* graph, const std::vector<std::string>& settings);

// Of a decoder that holds two, with a cache of earlier keys and values (inputs past*) and without, in the branches of
// an If between which a boolean input chooses (Optimum's decoder_model_merged.onnx): the input becomes the constant
// that chooses the one without. Returns "use_cache_branch=false" for each such input.
std::vector<std::string> choose_branches_without_cache(Graph* graph);

}  // namespace onnx_train
