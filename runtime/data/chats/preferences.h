// Pairs of answers, of which people prefer the first, one pair a line of X.jsonl, as TRL has them: {"prompt": ...,
// "chosen": ..., "rejected": ...}. All are texts, which are read as they are, with the token that ends a text after an
// answer; or lists of messages, which the chat template of the tokenizer writes. Without "prompt" it is what both
// answers begin with. Functions run on any thread, one at a time for a tokenizer. They throw Error that names file and
// line.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"

namespace onnx_train {

// Whether the first line of a file holds a pair.
bool holds_preferences(const std::string& path);

// Whether the model's loss compares pairs.
bool takes_pairs(const std::vector<InputSpec>& inputs);

// `paths` are at least one, of such files. Rows 2i and 2i + 1 of the arrays are pair i (onnx_passes/loss/pairs.h).
DataArrays open_preferences(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs,
                            const ReadOptions& options);

}  // namespace onnx_train
