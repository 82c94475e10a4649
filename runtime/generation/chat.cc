#include "runtime/generation/chat.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/generation/written_text.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

constexpr const char *kSystem = "system", *kUser = "user", *kAssistant = "assistant";

// How many tokens config.json beside a tokenizer says that the model reads; `otherwise` if it does not say.
int64_t context_beside(const std::string& tokenizer, int64_t otherwise) {
  const std::string path = (fs::path(tokenizer).parent_path() / "config.json").string();
  std::error_code error;
  if (!fs::exists(path, error)) return otherwise;
  const auto file = MappedFile::open(path);
  const auto json =
      nlohmann::json::parse(file->data(), file->data() + file->size(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail_as(ErrorCode::kFile, path, " is no JSON object");
  for (const char* name : {"max_position_embeddings", "n_positions"}) {
    const auto found = json.find(name);
    if (found != json.end() && found->is_number_integer() && found->get<int64_t>() > 0) return *found;
  }
  return otherwise;
}

std::vector<chats::Message> beginning(const std::string& system) {
  if (system.empty()) return {};
  return {{kSystem, system}};
}

}  // namespace

Chat::Chat(Session* session, const std::string& tokenizer, const std::string& system, const GenerationOptions& options,
           OnNote on_note)
    : tokenizer_(tokenizer),
      template_(tokenizer_.path()),
      on_note_(std::move(on_note)),
      begin_(system.empty() ? 0 : 1),
      messages_(beginning(system)),
      stops_(options.stop),
      options_(with_ends(options)),
      writer_(session, 1, options_) {}

// The options of the writer: stops are texts, which are not looked for among tokens.
GenerationOptions Chat::with_ends(const GenerationOptions& options) {
  GenerationOptions all = options;
  all.stop.clear();
  all.ends = tokenizer_.ends();
  all.usual_context = context_beside(tokenizer_.path(), all.usual_context);
  find_end_of_answers(&all.ends);
  if (!all.end && all.ends.empty() && stops_.empty()) {
    note_once("end", concat("nothing says where an answer ends, neither the chat template in ", template_.path(),
                            " nor eos_token beside it: --end names a token, --stop a text"));
  }
  return all;
}

// What the template writes after an answer: the first token that is no text, such as <|im_end|>, or else the text.
void Chat::find_end_of_answers(std::vector<int64_t>* ends) {
  const std::string answer = "An answer.";
  Messages messages = messages_;
  messages.push_back({kUser, "A question."});
  const std::string asked = template_.write(messages, /*introduces=*/true).text;
  messages.push_back({kAssistant, answer});
  const std::string answered = template_.write(messages, /*introduces=*/false).text;
  const size_t at = answered.rfind(answer);
  if (at == std::string::npos) return;
  const std::string rest = answered.substr(at + answer.size());
  const std::vector<int64_t> tokens = tokenizer_.encode(rest, "what follows an answer");
  const auto end = std::ranges::find_if(tokens, [&](int64_t token) { return tokenizer_.is_added(token); });
  if (end != tokens.end()) {
    if (std::ranges::find(*ends, *end) == ends->end()) ends->push_back(*end);
    return;
  }
  const size_t from = rest.find_first_not_of(" \n\r\t"), to = rest.find_last_not_of(" \n\r\t");
  if (from != std::string::npos) stops_.push_back(rest.substr(from, to + 1 - from));
}

std::vector<int64_t> Chat::tokens_of(const Messages& messages) {
  return tokenizer_.encode(template_.write(messages, /*introduces=*/true).text, "the conversation");
}

bool Chat::has_older_turns() const {
  return std::any_of(messages_.begin() + static_cast<std::ptrdiff_t>(begin_), messages_.end() - 1,
                     [](const chats::Message& message) { return message.role == kUser; });
}

// The first message after what the system says, and its answer.
void Chat::drop_oldest() {
  const auto first = messages_.begin() + static_cast<std::ptrdiff_t>(begin_);
  messages_.erase(first, std::find_if(first + 1, messages_.end(),
                                      [](const chats::Message& message) { return message.role == kUser; }));
}

// The tokens of the conversation, without its oldest turns if there is little room for an answer: half of the context
// is free then, so that what is left is not read anew at each turn.
std::vector<int64_t> Chat::prompt() {
  constexpr int64_t kPart = 4;  // of the context, which an answer may need
  const int64_t context = writer_.context(), needed = std::clamp<int64_t>(context / kPart, 1, options_.tokens);
  std::vector<int64_t> tokens = tokens_of(messages_);
  if (std::ssize(tokens) + needed > context && has_older_turns()) {
    note_once("turns", concat("the conversation is longer than the ", context,
                              " tokens that the model reads: its oldest turns are left out from here on"));
    while (has_older_turns() && std::ssize(tokens) > context / 2) {
      drop_oldest();
      tokens = tokens_of(messages_);
    }
  }
  if (std::ssize(tokens) >= context) {
    fail_as(ErrorCode::kData, "the message is too long: with what stands before it ", tokens.size(),
            " tokens, of which the model reads ", context);
  }
  return tokens;
}

void Chat::answer(const std::string& message, const OnText& on_text) {
  const Messages before = messages_;
  messages_.push_back({kUser, message});
  try {
    messages_.push_back({kAssistant, write(prompt(), on_text)});
  } catch (...) {
    messages_ = before;
    throw;
  }
}

std::string Chat::write(const std::vector<int64_t>& tokens, const OnText& on_text) {
  WrittenText text(&tokenizer_, {}, stops_, WrittenText::Stops::kHidden);
  const int64_t room = writer_.context() - std::ssize(tokens);
  int64_t written = 0;
  bool is_ended = false;
  const auto on_token = [&](size_t, int64_t token) {
    ++written;
    is_ended = writer_.is_end(token) || text.add(token);
    if (is_ended) return AfterToken::kEndText;
    if (on_text(text.more(/*all=*/false))) return AfterToken::kGoOn;
    is_ended = true;
    return AfterToken::kEndAll;
  };
  writer_.write({tokens}, std::min(options_.tokens, room), on_token);
  if (const std::string rest = text.more(/*all=*/true); !rest.empty()) on_text(rest);
  if (written == room && !is_ended)
    note_once("room", concat("an answer ends where the ", writer_.context(), " tokens that the model reads are full"));
  return text.text();
}

void Chat::note_once(const char* what, const std::string& note) {
  if (noted_.insert(what).second) on_note_(note);
}

}  // namespace onnx_train
