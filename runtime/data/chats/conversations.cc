#include "runtime/data/chats/conversations.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/chats/chat_template.h"
#include "runtime/data/files/tokens.h"

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

// Samples of equal length, as they are collected.
struct Samples {
  int64_t length;
  int64_t padding, ignored;
  std::vector<int64_t> tokens = {}, labels = {}, mask = {};
  int64_t count = 0, cut = 0, left_out = 0, learned = 0;

  // Leaves out a conversation none of whose labels is one of an answer, if it is to be learned.
  void add(const Labelled& conversation, bool has_labels) {
    const auto size = std::ssize(conversation.tokens);
    const int64_t kept = std::min(length, has_labels ? std::max<int64_t>(size - 1, 0) : size);
    int64_t answers = 0;
    for (int64_t t = 0; has_labels && t < kept; ++t)
      answers += conversation.is_answer[static_cast<size_t>(t) + 1] ? 1 : 0;
    if (has_labels && answers == 0) {
      ++left_out;
      return;
    }
    for (int64_t t = 0; t < length; ++t) {
      const auto at = static_cast<size_t>(t);
      const bool is_label = has_labels && t < kept && conversation.is_answer[at + 1];
      tokens.push_back(t < kept ? conversation.tokens[at] : padding);
      labels.push_back(is_label ? conversation.tokens[at + 1] : ignored);
      mask.push_back(t < kept ? 1 : 0);
    }
    cut += size > length + (has_labels ? 1 : 0) ? 1 : 0;
    learned += answers;
    ++count;
  }
};

Tensor tensor_of(const std::vector<int64_t>& values, const Shape& shape) {
  Tensor tensor(DType::kInt64, shape);
  std::ranges::copy(values, tensor.data<int64_t>());
  return tensor;
}

int64_t label_that_is_ignored(const ReadOptions& options, const InputSpec& labels) {
  if (options.ignored_label) return *options.ignored_label;
  throw UsageError(concat("conversations have labels for their answers alone, and the loss reads '", labels.name,
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

DataArrays open_conversations(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs,
                              const ReadOptions& options) {
  const TokenInputs to = token_inputs(inputs);
  Conversations conversations(options);
  Samples samples{block_of(*to.tokens, options), conversations.tokenizer().padding(),
                  to.labels ? label_that_is_ignored(options, *to.labels) : 0};
  for (const std::string& path : paths) {
    for_each_line(path, [&](const Json& record, int64_t line) {
      const std::string where = concat(path, ", line ", line);
      Messages messages;
      if (!read_messages(record, &messages)) {
        fail_as(ErrorCode::kFile, where,
                R"( is no JSON object with "messages", each with "role" and "content", a text or a list of texts)");
      }
      try {
        samples.add(conversations.tokens_of(messages, where), to.labels != nullptr);
      } catch (const Error& error) {
        if (std::string_view(error.what()).starts_with(path)) throw;
        fail_as(error.code(), where, ": ", error.what());
      }
      return true;
    });
  }
  if (samples.count == 0) {
    fail_as(ErrorCode::kData, paths[0], ": no conversation has an answer, of the role '", kAnswers, "', in its first ",
            samples.length, " tokens; --block-size says how many a sample has");
  }
  const Shape shape = {samples.count, samples.length};
  DataArrays data;
  data.arrays[to.tokens->name] = tensor_of(samples.tokens, shape);
  if (to.labels) data.arrays[to.labels->name] = tensor_of(samples.labels, shape);
  for (const InputSpec& spec : inputs) {
    if (is_mask(spec)) data.arrays[spec.name] = tensor_of(samples.mask, shape);
  }
  const auto part = [](int64_t count, const char* what) {
    return count > 0 ? concat("; ", count, what) : std::string();
  };
  data.summary = concat(
      paths.size() == 1 ? paths[0] : concat(paths.size(), " files, ", paths[0], " the first"), ": ", samples.count,
      " conversations of ", samples.length, " tokens by ", conversations.template_path(),
      to.labels ? concat(", ", samples.learned, " tokens of answers are learned") : "",
      part(samples.cut, " are longer, and cut"), part(samples.left_out, " without an answer in them are left out"));
  if (conversations.introduces_nothing()) {
    data.notes.push_back(
        concat("the chat template in ", conversations.template_path(),
               " does not read add_generation_prompt, so that what introduces an answer is learned with it; ",
               "{% generation %} in it says what is"));
  }
  remember_tokenizer(conversations.tokenizer(), options, &data);
  return data;
}

void for_each_record(const std::string& path, const std::function<bool(const nlohmann::json&, int64_t)>& f) {
  for_each_line(path, f);
}

bool read_turns(const nlohmann::json& turns, std::vector<chats::Message>* messages) {
  return add_turns(turns, "role", "content", messages);
}

}  // namespace onnx_train
