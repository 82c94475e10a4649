// A conversation with a language model: turns are written by the chat template in the folder of its tokenizer
// (runtime/data/chats), as for training, and what the model has read of them is not read again. The caller owns the
// session, which must outlive the object; one thread. Functions throw Error.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/data/chats/chat_template.h"
#include "runtime/data/tokenizer/tokenizer.h"
#include "runtime/generation/generate.h"

namespace onnx_train {

class Chat {
 public:
  // Gets more of an answer with each token: whole characters, or nothing; false ends it.
  using OnText = std::function<bool(const std::string& more)>;
  // Gets a sentence that the user should know.
  using OnNote = std::function<void(const std::string& note)>;

  // `tokenizer`: a file or folder, as Tokenizer has it. `system`: what the conversation begins with; may be empty. An
  // answer ends with a token of Tokenizer::ends(), with what the template writes after one, with options.end, or before
  // a text of options.stop; after options.tokens; or where the context is full. options.context of 0: what the model or
  // config.json beside the tokenizer says. Throws if the template does not take `system`.
  Chat(Session* session, const std::string& tokenizer, const std::string& system, const GenerationOptions& options,
       OnNote on_note);

  // Writes the answer to a message. Both are a part of the conversation then; neither is if the message is refused: it
  // is no UTF-8, the template raises an exception, or it is longer than the context. Where the context is full, the
  // oldest turns are left out, and a note says so, once.
  void answer(const std::string& message, const OnText& on_text);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const GenerationReport& report() const { return writer_.report(); }

 private:
  using Messages = std::vector<chats::Message>;

  std::vector<int64_t> tokens_of(const Messages& messages);
  std::vector<int64_t> prompt();
  std::string write(const std::vector<int64_t>& tokens, const OnText& on_text);
  void drop_oldest();
  bool has_older_turns() const;
  GenerationOptions with_ends(const GenerationOptions& options);
  void find_end_of_answers(std::vector<int64_t>* ends);
  void note_once(const char* what, const std::string& note);

  Tokenizer tokenizer_;
  const chats::ChatTemplate template_;
  const OnNote on_note_;
  std::set<std::string> noted_;
  const size_t begin_;  // of turns in messages_: 1 after what the system says
  Messages messages_;
  std::vector<std::string> stops_;
  const GenerationOptions options_;
  TextWriter writer_;
};

}  // namespace onnx_train
