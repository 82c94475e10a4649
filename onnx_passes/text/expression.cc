#include "onnx_passes/text/expression.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

bool starts_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool continues_word(char c) { return starts_word(c) || std::isdigit(static_cast<unsigned char>(c)) || c == '.'; }

}  // namespace

void ExpressionReader::skip_spaces() {
  while (std::isspace(static_cast<unsigned char>(next()))) ++position_;
}

bool ExpressionReader::at_end() {
  skip_spaces();
  return position_ >= text_.size();
}

size_t ExpressionReader::column() {
  skip_spaces();
  return position_ + 1;
}

bool ExpressionReader::at(char c) {
  skip_spaces();
  return next() == c;
}

bool ExpressionReader::take(char c) {
  if (!at(c)) return false;
  ++position_;
  return true;
}

void ExpressionReader::expect(char c, const char* before) {
  if (!take(c)) fail_at(column(), concat("expected '", c, "' ", before, ", found ", found()));
}

bool ExpressionReader::at_number() {
  skip_spaces();
  size_t i = position_;
  if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) ++i;
  return i < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[i])) || text_[i] == '.');
}

bool ExpressionReader::at_word() {
  skip_spaces();
  return starts_word(next()) || next() == '\'' || next() == '"';
}

double ExpressionReader::number() {
  const size_t start = column();
  take('+');  // from_chars accepts only '-'
  double value = 0;
  const char* end = text_.data() + text_.size();
  const auto result = std::from_chars(text_.data() + position_, end, value);
  if (result.ec != std::errc() || !std::isfinite(value)) fail_at(start, concat("expected a number, found ", found()));
  position_ = static_cast<size_t>(result.ptr - text_.data());
  return value;
}

Word ExpressionReader::word(const char* what) {
  Word word{"", false, column()};
  const char quote = next();
  if (quote == '\'' || quote == '"') {
    word.quoted = true;
    do {  // a doubled quote is a quote in the name
      const size_t end = text_.find(quote, position_ + 1);
      if (end == std::string::npos) {
        fail_at(word.column, concat("the quote ", quote, " is never closed; in a name, double it"));
      }
      word.text += text_.substr(position_ + 1, end - position_ - 1);
      position_ = end + 1;
      if (next() == quote) word.text += quote;
    } while (next() == quote);
    return word;
  }
  if (!starts_word(quote)) fail_at(word.column, concat("expected ", what, ", found ", found()));
  while (continues_word(next())) word.text += text_[position_++];
  return word;
}

void ExpressionReader::fail_at(size_t column, const std::string& reason, ErrorCode code) const {
  fail_as(code, option_, " \"", text_, "\", column ", column, ": ", reason);
}

std::string ExpressionReader::found() {
  skip_spaces();
  return position_ < text_.size() ? concat('\'', next(), '\'') : "the end";
}

Option read_option(ExpressionReader* reader, Word key) {
  Option option{std::move(key), 0.0, reader->column()};
  if (reader->take('(')) {
    NumberTuple tuple{{reader->number()}};
    reader->expect(',', "between two numbers");
    do tuple.numbers.push_back(reader->number());
    while (reader->take(','));
    reader->expect(')', "after the numbers");
    option.value = std::move(tuple);
  } else if (reader->take('[')) {
    std::vector<double> list;
    do list.push_back(reader->number());
    while (reader->take(','));
    reader->expect(']', "after a list of numbers");
    option.value = std::move(list);
  } else if (reader->at_word()) {
    Word word = reader->word("a value");
    if (!word.quoted && (word.text == "true" || word.text == "false")) {
      option.value = word.text == "true" ? 1.0 : 0.0;
    } else {
      option.value = std::move(word);
    }
  } else {
    option.value = reader->number();
  }
  return option;
}

namespace {

std::string in_lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Levenshtein distance of two texts.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

Arguments read_arguments(ExpressionReader* reader) {
  Arguments arguments;
  if (!reader->take('(') || reader->take(')')) return arguments;
  do {
    Word word = reader->word("a name or an option");
    if (reader->take('=')) {
      arguments.options.push_back(read_option(reader, std::move(word)));
    } else if (arguments.options.empty()) {
      arguments.names.push_back(std::move(word));
    } else {
      reader->fail_at(word.column, concat("'", word.text, "' comes after an option; names come first"));
    }
  } while (reader->take(','));
  reader->expect(')', "at the end of the arguments");
  return arguments;
}

std::string stripped(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\n"), last = text.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";  // which has no sign
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general);
  return {buffer, result.ptr};
}

std::string quoted_if_needed(const std::string& name) {
  const bool plain = !name.empty() && starts_word(name[0]) && std::all_of(name.begin(), name.end(), continues_word);
  if (plain) return name;
  const char quote = name.find('\'') == std::string::npos || name.find('"') != std::string::npos ? '\'' : '"';
  std::string text(1, quote);
  for (char c : name) text += c == quote ? std::string(2, c) : std::string(1, c);
  return text + quote;
}

std::string similar_names(const std::string& name, const std::vector<std::string>& candidates) {
  constexpr size_t kMost = 3, kLongest = 200;
  std::vector<std::pair<size_t, const std::string*>> ranked;
  for (const std::string& candidate : candidates) {
    if (name.size() > kLongest || candidate.size() > kLongest) continue;
    const bool part = !name.empty() && candidate.find(name) != std::string::npos;
    const size_t distance = part ? 1 : edit_distance(in_lower_case(name), in_lower_case(candidate));
    if (distance <= std::max<size_t>(2, name.size() / 2)) ranked.emplace_back(distance, &candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (!ranked.empty() && ranked[0].first == 0) ranked.resize(1);  // only the case differs
  std::string text;
  for (size_t i = 0; i < ranked.size() && i < kMost; ++i) text += concat(i ? ", '" : "'", *ranked[i].second, "'");
  return text;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string similar = similar_names(name, candidates);
  return similar.empty() ? "" : concat("; did you mean ", similar, "?");
}

}  // namespace onnx_train
