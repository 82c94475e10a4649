// The sizes with which a model of symbolic dimensions is tried. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/data/dataset.h"

namespace onnx_train {

inline constexpr int64_t kTrialBatch = 2;

// Lists of NAME=N for the symbolic dimensions of the inference graph's inputs, in the order in which they are tried;
// each has all of the `given` sizes. First all dimensions but those of batches, which come first in their inputs, get
// one size (8, 1, 2, 32, 64, 224, ...), then batches, too, then single dimensions. One empty list if all sizes are
// known. A model of many nodes is tried less often. Throws Error for a name that is no dimension of an input.
std::vector<std::vector<std::string>> size_candidates(const Model& model, const std::vector<std::string>& given,
                                                      size_t num_nodes);

// Those of `sizes` that name dimensions of these inputs: an entry point may read fewer inputs than the model has.
std::vector<std::string> sizes_of(const std::vector<InputSpec>& inputs, const std::vector<std::string>& sizes);

// "height and width of 8, 1, 2, 32, 64, 224 and 14 more": what the lists, of which there is one at least, try.
std::string describe_sizes(const std::vector<std::vector<std::string>>& candidates);

}  // namespace onnx_train
