// Conversations as samples of a language model, one a line of X.jsonl, as Python's tokenize_chats reads them: written
// by the chat template of the tokenizer, with labels for the answers alone. Functions run on any thread, one at a time
// for a tokenizer. They throw Error that names file and line.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {

// Whether the first line of a file holds a conversation: {"messages": [{"role": ..., "content": ...}, ...]},
// {"conversations": [{"from": ..., "value": ...}, ...]}, {"prompt": ..., "completion": ...}, or
// {"instruction": ..., "output": ...}.
bool holds_conversations(const std::string& path);

// `paths` are at least one, of such files.
DataArrays open_conversations(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs,
                              const ReadOptions& options);

}  // namespace onnx_train
