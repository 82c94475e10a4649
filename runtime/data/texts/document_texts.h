// Files of tokens and texts whose documents are samples: --packing. Pure functions; any thread. They throw Error that
// names the file, and UsageError for files that do not say where documents end.
#pragma once

#include <vector>

#include "runtime/data/files/tokens.h"

namespace onnx_train {

// At least one source. A line of .jsonl is a document, and so is a .txt; in .bin and .npy one ends after each token
// --document-end. Documents share rows with those of other sources, unless sources have weights.
DataArrays open_documents(const std::vector<TokenFiles>& sources, const std::vector<InputSpec>& inputs,
                          const ReadOptions& options);

}  // namespace onnx_train
