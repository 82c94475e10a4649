// A conversation at the terminal, or of lines that come by a pipe. Process-wide: standard input and output, Ctrl-C.
#pragma once

#include <string>
#include <vector>

#include "runtime/generation/chat.h"

namespace onnx_train {

// Answers each line of standard input until it ends; answers are on standard output, as they are written. Ctrl-C ends
// an answer. `notes`: what the chat has said, which is printed after each answer. Returns false if a message was
// refused, which is printed as an error; the conversation goes on.
bool converse(Chat* chat, std::vector<std::string>* notes);

}  // namespace onnx_train
