#include "runtime/data/chats/conversations.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/chats/chat_template.h"
#include "runtime/data/files/document_buffer.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/texts/packed_rows.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;
using Messages = std::vector<chats::Message>;

constexpr const char* kAnswers = "assistant";  // the role whose tokens are learned

// Calls f(JSON, line) for the lines that are not empty, until it returns false. Discarded JSON is of a line that is
// none.
template <typename F>
void for_each_line(const std::string& path, const F& f) {
  const auto file = MappedFile::open(path);
  std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view written = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(written.size() + 1, text.size()));
    if (written.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (!f(Json::parse(written, nullptr, /*allow_exceptions=*/false), line)) return;
  }
}

bool is_conversation(const Json& record) {
  return record.is_object() && !record.contains("text") &&
         (record.contains("messages") || record.contains("conversations") ||
          (record.contains("prompt") && record.contains("completion")) ||
          (record.contains("instruction") && record.contains("output")));
}

// A text, or a list of {"type": "text", "text": ...}. None for other contents.
std::optional<std::string> content_of(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    const bool is_text =
        part.is_object() && part.value("type", Json()) == "text" && part.value("text", Json()).is_string();
    if (!is_text) return std::nullopt;
    text += part.at("text").get<std::string>();
  }
  return text;
}

bool add_message(const Json& role, const Json& content, Messages* messages) {
  const auto text = content_of(content);
  if (!role.is_string() || !text) return false;
  const std::string name = role.get<std::string>();
  messages->push_back({name == "human" ? "user" : name == "gpt" ? kAnswers : name, *text});
  return true;
}

bool add_turns(const Json& turns, const char* role, const char* content, Messages* messages) {
  return turns.is_array() && std::ranges::all_of(turns, [&](const Json& turn) {
           return turn.is_object() && add_message(turn.value(role, Json()), turn.value(content, Json()), messages);
         });
}

// False for a record of another form.
bool read_messages(const Json& record, Messages* messages) {
  if (!record.is_object()) return false;
  if (record.contains("prompt") && record.contains("completion")) {
    return add_message("user", record["prompt"], messages) && add_message(kAnswers, record["completion"], messages);
  }
  if (record.contains("instruction") && record.contains("output")) {
    const Json more = record.value("input", Json());
    if (!record["instruction"].is_string() || !(more.is_null() || more.is_string())) return false;
    std::string asked = record["instruction"];
    if (more.is_string() && !more.get_ref<const std::string&>().empty()) asked += "\n\n" + more.get<std::string>();
    return add_message("user", asked, messages) && add_message(kAnswers, record["output"], messages);
  }
  if (record.contains("conversations")) return add_turns(record["conversations"], "from", "value", messages);
  return add_turns(record.value("messages", Json()), "role", "content", messages);
}

// Tokens, and whether each is a part of an answer.
struct Labelled {
  std::vector<int64_t> tokens;
  std::vector<bool> is_answer;

  // The rest of `all`, which begins with these tokens; false if it does not.
  bool continue_to(const std::vector<int64_t>& all, bool answers) {
    if (all.size() < tokens.size() || !std::equal(tokens.begin(), tokens.end(), all.begin())) return false;
    tokens = all;
    is_answer.resize(all.size(), answers);
    return true;
  }
};

class Conversations {
 public:
  Conversations(const DataOptions& options) : tokenizer_(options.tokenizer), template_(tokenizer_.path()) {}

  Labelled tokens_of(const Messages& messages, const std::string& where) {
    return template_.marks_answers() ? by_marks(messages, where) : by_turns(messages, where);
  }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const std::string& template_path() const { return template_.path(); }
  const std::string& template_identity() const { return template_.identity(); }
  bool introduces_nothing() const { return introduces_nothing_; }

 private:
  std::vector<int64_t> encode(std::string_view text, const std::string& where) {
    return tokenizer_.encode(text, where);
  }

  // Answers are what the template has between {% generation %} and {% endgeneration %}.
  Labelled by_marks(const Messages& messages, const std::string& where) {
    const chats::Written written = template_.write(messages, /*introduces=*/false);
    const std::string_view text = written.text;
    Labelled made;
    for (const auto& [begin, end] : written.generated) {
      if (!made.continue_to(encode(text.substr(0, begin), where), false) ||
          !made.continue_to(encode(text.substr(0, end), where), true))
        fail_as(ErrorCode::kData, where, ": a token of ", tokenizer_.path(), " crosses the border of an answer");
    }
    if (!made.continue_to(encode(text, where), false))
      fail_as(ErrorCode::kData, where, ": a token of ", tokenizer_.path(), " crosses the border of an answer");
    return made;
  }

  // An answer is what is written beyond the conversation before it, which ends with what introduces an answer.
  Labelled by_turns(const Messages& messages, const std::string& where) {
    Labelled made;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != kAnswers) continue;
      const auto from = messages.begin();
      const Messages asked(from, from + static_cast<std::ptrdiff_t>(i)),
          answered(from, from + static_cast<std::ptrdiff_t>(i) + 1);
      const auto before = encode(template_.write(asked, true).text, where),
                 after = encode(template_.write(answered, false).text, where);
      if (made.tokens.empty() && before == encode(template_.write(asked, false).text, where))
        introduces_nothing_ = true;
      if (!made.continue_to(before, false) || !made.continue_to(after, true)) {
        fail_as(ErrorCode::kData, where, ": the chat template in ", template_.path(),
                " writes what came before an answer in ",
                "another way once there is one; mark answers in it by {% generation %} and {% endgeneration %}");
      }
    }
    return made;
  }

  Tokenizer tokenizer_;
  chats::ChatTemplate template_;
  bool introduces_nothing_ = false;
};

// What DocumentTokens remarks of a template that does not read add_generation_prompt.
constexpr const char* kIntroducesNothing = "introduces nothing";

void add_conversation(const Json& record, const std::string& where, Conversations* conversations,
                      DocumentBuffer* made) {
  Messages messages;
  if (!read_messages(record, &messages)) {
    fail_as(ErrorCode::kFile, where,
            R"( is no JSON object with "messages", each with "role" and "content", a text or a list of texts)");
  }
  Labelled labelled;
  try {
    labelled = conversations->tokens_of(messages, where);
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(where)) throw;
    fail_as(error.code(), where, ": ", error.what());
  }
  made->add(labelled.tokens, labelled.is_answer);
}

DocumentTokens tokens_of_file(const std::string& path, Conversations* conversations) {
  DocumentBuffer made;
  for_each_line(path, [&](const Json& record, int64_t line) {
    add_conversation(record, concat(path, ", line ", line), conversations, &made);
    return true;
  });
  return made.result(conversations->introduces_nothing() ? kIntroducesNothing : "");
}

void check_labels_may_be_ignored(const ReadOptions& options, const InputSpec* labels) {
  if (!labels || options.ignored_label) return;
  throw UsageError(concat("conversations have labels for their answers alone, and the loss reads '", labels->name,
                          "' and ignores none of them; build it with ignore_index"));
}

}  // namespace

bool holds_conversations(const std::string& path) {
  if (!path.ends_with(".jsonl")) return false;
  bool holds = false;
  for_each_line(path, [&](const Json& record, int64_t) {
    holds = is_conversation(record);
    return false;
  });
  return holds;
}

bool is_line_of_conversation(std::string_view line) {
  return is_conversation(Json::parse(line, nullptr, /*allow_exceptions=*/false));
}

ConversationReader conversation_reader(const DataOptions& options) {
  return [conversations = std::make_shared<Conversations>(options)](std::string_view line, const std::string& where,
                                                                    DocumentBuffer* made) {
    add_conversation(Json::parse(line, nullptr, /*allow_exceptions=*/false), where, conversations.get(), made);
  };
}

DataArrays open_conversations(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs,
                              const ReadOptions& options) {
  const TokenInputs to = token_inputs(inputs);
  check_labels_may_be_ignored(options, to.labels);
  Conversations conversations(options);
  const Tokenizer& tokenizer = conversations.tokenizer();
  const int64_t length = block_of(*to.tokens, options);
  DataArrays data;
  DocumentGroup group{"", {}};
  bool introduces_nothing = false;
  std::vector<TokenShard> shards;
  for (const std::string& path : paths) {
    std::string note;
    const DocumentTokens made = kept_tokens(
        path, concat(tokenizer.identity(), ", ", conversations.template_identity()),
        !options.no_token_cache && !conversations.template_identity().empty(),
        [&] { return tokens_of_file(path, &conversations); }, &note);
    introduces_nothing = introduces_nothing || made.remark == kIntroducesNothing;
    group.shards.push_back({path, made.tokens, made.ends, made.answers});
    shards.push_back({.path = path, .tokens = {}, .kind = "", .guess = "", .note = note});
  }
  const Packing packing = options.packing.empty() ? Packing::kNone : parse_packing(options.packing);
  const PackedDocuments found = add_documents({group}, packing, tokenizer.padding(), inputs, options, &data);
  if (found.all_rows() == 0) {
    fail_as(ErrorCode::kData, paths[0], ": no conversation has an answer, of the role '", kAnswers, "', in its first ",
            length, " tokens; --block-size says how many a sample has");
  }
  const auto part = [](int64_t count, const char* what) {
    return count > 0 ? concat("; ", count, what) : std::string();
  };
  data.summary =
      concat(names_of(paths), ": ", found.documents, " conversations ",
             packs(packing) ? concat("in ", found.all_rows(), " samples (", options.packing, ") ") : "", "of ", length,
             " tokens by ", conversations.template_path(),
             to.labels ? concat(", ", found.learned, " tokens of answers are learned") : "",
             part(found.cut, " are longer, and cut"), part(found.left_out, " without an answer in them are left out"));
  if (introduces_nothing) {
    data.notes.push_back(
        concat("the chat template in ", conversations.template_path(),
               " does not read add_generation_prompt, so that what introduces an answer is learned with it; ",
               "{% generation %} in it says what is"));
  }
  add_cache_notes(shards, &data);
  remember_tokenizer(tokenizer, options, &data);
  return data;
}

void for_each_record(const std::string& path, const std::function<bool(const nlohmann::json&, int64_t)>& f) {
  for_each_line(path, f);
}

bool read_turns(const nlohmann::json& turns, std::vector<chats::Message>* messages) {
  return add_turns(turns, "role", "content", messages);
}

}  // namespace onnx_train
