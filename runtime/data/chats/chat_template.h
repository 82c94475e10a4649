// How a model's conversations are written: the chat template in the folder of its tokenizer, as transformers keeps it.
// The caller owns one; one thread uses it. It throws Error that names the file.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/chats/template_program.h"

namespace onnx_train::chats {

struct Message {
  std::string role, content;
};

class ChatTemplate {
 public:
  // chat_template.jinja, or "chat_template" of tokenizer_config.json, beside the file `tokenizer`.
  explicit ChatTemplate(const std::string& tokenizer);

  // `introduces`: what introduces an answer follows the last message.
  Written write(const std::vector<Message>& messages, bool introduces) const;
  bool marks_answers() const { return program_->marks_generation(); }
  const std::string& path() const { return path_; }
  // Differs for another template, and for other special tokens. "" for a template that reads the clock.
  const std::string& identity() const { return identity_; }

 private:
  std::string path_, identity_;
  Dict special_;  // bos_token and others, as the template calls them
  std::unique_ptr<TemplateProgram> program_;
};

}  // namespace onnx_train::chats
