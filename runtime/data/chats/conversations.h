// Conversations as samples of a language model, one a line of X.jsonl, as Python's tokenize_chats reads them: written
// by the chat template of the tokenizer, with labels for the answers alone. Functions run on any thread, one at a time
// for a tokenizer. They throw Error that names file and line.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/chats/chat_template.h"
#include "runtime/data/files/document_buffer.h"
#include "runtime/data/files/read_options.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {

// Whether the first line of a file holds a conversation: {"messages": [{"role": ..., "content": ...}, ...]},
// {"conversations": [{"from": ..., "value": ...}, ...]}, {"prompt": ..., "completion": ...}, or
// {"instruction": ..., "output": ...}.
bool holds_conversations(const std::string& path);

// The same of a line.
bool is_line_of_conversation(std::string_view line);

// Adds the tokens of a line; the text `where` it is from is for errors. Copies share the tokenizer.
using ConversationReader = std::function<void(std::string_view line, const std::string& where, DocumentBuffer* made)>;
ConversationReader conversation_reader(const DataOptions& options);

// `paths` are at least one, of such files.
DataArrays open_conversations(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs,
                              const ReadOptions& options);

// ---- Of such lines

// Calls f(record, line) for the lines of a file that are not empty, until it returns false. A record is discarded where
// the line is no JSON.
void for_each_record(const std::string& path, const std::function<bool(const nlohmann::json&, int64_t)>& f);
// Adds the messages of a list; false for another form.
bool read_turns(const nlohmann::json& turns, std::vector<chats::Message>* messages);

}  // namespace onnx_train
