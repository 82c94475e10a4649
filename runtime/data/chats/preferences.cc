#include "runtime/data/chats/preferences.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/chats/chat_template.h"
#include "runtime/data/chats/conversations.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;
using Turns = std::vector<chats::Message>;

constexpr const char* kForm =
    R"( is no JSON object with "chosen" and "rejected", and mostly "prompt": texts, or lists of messages with "role" )"
    R"(and "content")";

bool is_preference(const Json& record) {
  return record.is_object() && record.contains("chosen") && record.contains("rejected");
}

// What a template writes, or a text itself: the prompt, and the prompt with an answer.
struct AnsweredText {
  std::string prompt, whole;
};
struct PairOfTexts {
  AnsweredText chosen, rejected;
  bool ends = false;  // a text, after which its end is a token of its own
};

// The bytes that both texts begin with, as whole characters.
size_t common_length(std::string_view a, std::string_view b) {
  auto length = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto is_inside = [&](std::string_view text) {
    return length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80;
  };
  while (length > 0 && (is_inside(a) || is_inside(b))) --length;
  return length;
}

// What both texts begin with, up to a blank before the first difference, which belongs to the answers.
std::string common_prompt(const std::string& chosen, const std::string& rejected) {
  size_t length = common_length(chosen, rejected);
  if (length > 0 && chosen[length - 1] == ' ') --length;
  return chosen.substr(0, length);
}

bool same(const chats::Message& a, const chats::Message& b) { return a.role == b.role && a.content == b.content; }

// Leaves the messages that both begin with out of them.
Turns take_common_turns(Turns* chosen, Turns* rejected) {
  const auto [in_chosen, in_rejected] = std::ranges::mismatch(*chosen, *rejected, same);
  const auto count = in_chosen - chosen->begin();
  Turns prompt(chosen->begin(), in_chosen);
  chosen->erase(chosen->begin(), chosen->begin() + count);
  rejected->erase(rejected->begin(), rejected->begin() + count);
  return prompt;
}

// The tokens of a row, of which the last ones, from `answer` on, are the answer.
struct Row {
  std::vector<int64_t> tokens;
  size_t answer = 0;
};

class PairReader {
 public:
  explicit PairReader(const DataOptions& options) : tokenizer_(options.tokenizer) {}

  // Nothing for a record of another form.
  std::optional<PairOfTexts> texts_of(const Json& record) {
    if (!is_preference(record)) return std::nullopt;
    const Json &chosen = record["chosen"], &rejected = record["rejected"];
    const Json prompt = record.value("prompt", Json());
    if (chosen.is_string() && rejected.is_string() && (prompt.is_string() || prompt.is_null()))
      return of_texts(prompt, chosen, rejected);
    Turns asked, good, bad;
    const bool reads = read_turns(chosen, &good) && read_turns(rejected, &bad);
    if (!reads || !(prompt.is_null() || read_turns(prompt, &asked))) return std::nullopt;
    if (prompt.is_null()) asked = take_common_turns(&good, &bad);
    return of_turns(asked, good, bad);
  }

  // The answer begins at the first token that is not the prompt's alone.
  Row row_of(const AnsweredText& text, bool ends, const std::string& where) {
    Row row{tokenizer_.encode(text.whole, where)};
    const std::vector<int64_t> before = tokenizer_.encode(text.prompt, where);
    row.answer = static_cast<size_t>(std::ranges::mismatch(row.tokens, before).in1 - row.tokens.begin());
    const auto end = tokenizer_.end();
    if (ends && end && (row.tokens.empty() || row.tokens.back() != *end)) row.tokens.push_back(*end);
    return row;
  }

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  static PairOfTexts of_texts(const Json& prompt, const std::string& chosen, const std::string& rejected) {
    if (prompt.is_null()) {
      const std::string common = common_prompt(chosen, rejected);
      return {{common, chosen}, {common, rejected}, true};
    }
    const std::string text = prompt;
    return {{text, text + chosen}, {text, text + rejected}, true};
  }

  PairOfTexts of_turns(const Turns& prompt, const Turns& chosen, const Turns& rejected) {
    if (!template_) template_.emplace(tokenizer_.path());
    const std::string asked = template_->write(prompt, /*introduces=*/true).text;
    const auto answered = [&](const Turns& answer) {
      Turns all = prompt;
      all.insert(all.end(), answer.begin(), answer.end());
      std::string whole = template_->write(all, /*introduces=*/false).text;
      return AnsweredText{asked.substr(0, common_length(asked, whole)), std::move(whole)};
    };
    return {answered(chosen), answered(rejected)};
  }

  Tokenizer tokenizer_;
  std::optional<chats::ChatTemplate> template_;
};

// Rows of equal length, as they are collected.
struct PairRows {
  int64_t length, padding, ignored;
  std::vector<int64_t> tokens = {}, labels = {}, mask = {};
  int64_t pairs = 0, cut = 0, left_out = 0;

  bool has_answer(const Row& row) const {
    return row.answer < row.tokens.size() && std::max<size_t>(row.answer, 1) <= static_cast<size_t>(length) &&
           row.tokens.size() > 1;
  }

  // Leaves out a pair of which a row has no label of its answer.
  void add(const Row& chosen, const Row& rejected) {
    if (!has_answer(chosen) || !has_answer(rejected)) {
      ++left_out;
      return;
    }
    bool is_cut = false;
    for (const Row* row : {&chosen, &rejected}) is_cut = add(*row) || is_cut;
    cut += is_cut ? 1 : 0;
    ++pairs;
  }

 private:
  bool add(const Row& row) {
    const auto size = std::ssize(row.tokens), kept = std::min(length, size - 1);
    for (int64_t t = 0; t < length; ++t) {
      const bool is_kept = t < kept, is_label = is_kept && t + 1 >= static_cast<int64_t>(row.answer);
      tokens.push_back(is_kept ? row.tokens[static_cast<size_t>(t)] : padding);
      labels.push_back(is_label ? row.tokens[static_cast<size_t>(t) + 1] : ignored);
      mask.push_back(is_kept ? 1 : 0);
    }
    return size > length + 1;
  }
};

Tensor rows_of(const std::vector<int64_t>& values, int64_t length) {
  Tensor tensor(DType::kInt64, {std::ssize(values) / length, length});
  std::ranges::copy(values, tensor.data<int64_t>());
  return tensor;
}

}  // namespace

bool holds_preferences(const std::string& path) {
  if (!path.ends_with(".jsonl")) return false;
  bool holds = false;
  for_each_record(path, [&](const Json& record, int64_t) {
    holds = is_preference(record);
    return false;
  });
  return holds;
}

bool takes_pairs(const std::vector<InputSpec>& inputs) {
  return std::ranges::any_of(inputs, [](const InputSpec& spec) { return spec.rows > 1; });
}

DataArrays open_preferences(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs,
                            const ReadOptions& options) {
  const TokenInputs to = token_inputs(inputs);
  if (!to.tokens || !to.labels || !options.ignored_label)
    fail_as(ErrorCode::kData, paths[0], " holds pairs of answers, and the model has no input int64[batch, tokens]");
  PairReader reader(options);
  PairRows rows{block_of(*to.tokens, options), reader.tokenizer().padding(), *options.ignored_label};
  for (const std::string& path : paths) {
    for_each_record(path, [&](const Json& record, int64_t line) {
      const std::string where = concat(path, ", line ", line);
      try {
        const auto texts = reader.texts_of(record);
        if (!texts) fail_as(ErrorCode::kFile, where, kForm);
        rows.add(reader.row_of(texts->chosen, texts->ends, where), reader.row_of(texts->rejected, texts->ends, where));
      } catch (const Error& error) {
        if (std::string_view(error.what()).starts_with(path)) throw;
        fail_as(error.code(), where, ": ", error.what());
      }
      return true;
    });
  }
  if (rows.pairs == 0) {
    fail_as(ErrorCode::kData, paths[0], ": no pair has both answers in its first ", rows.length,
            " tokens; --block-size says how many a row has");
  }
  DataArrays data;
  data.arrays[to.tokens->name] = rows_of(rows.tokens, rows.length);
  data.arrays[to.labels->name] = rows_of(rows.labels, rows.length);
  for (const InputSpec& spec : inputs) {
    if (is_mask(spec)) data.arrays[spec.name] = rows_of(rows.mask, rows.length);
  }
  const auto part = [](int64_t count, const char* what) {
    return count > 0 ? concat("; ", count, what) : std::string();
  };
  data.summary =
      concat(paths.size() == 1 ? paths[0] : concat(paths.size(), " files, ", paths[0], " the first"), ": ", rows.pairs,
             " pairs of answers in rows of ", rows.length, " tokens", part(rows.cut, " are longer, and cut"),
             part(rows.left_out, " without an answer in them are left out"));
  remember_tokenizer(reader.tokenizer(), options, &data);
  return data;
}

}  // namespace onnx_train
