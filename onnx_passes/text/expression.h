// Parser of the expressions of the command line: `0.7*cross_entropy(logits, labels) + mse('/aux/out', target)`,
// `adamw(betas=(0.9, 0.95))`. One reader parses one text from left to right. Throws Error that names the option, the
// text and the column. A value of one thread.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

// An identifier (letters, digits, `_`, `.`, not starting with a digit), or any text in single or double quotes. Between
// quotes every character stands for itself, including newlines and backslashes; the quote itself is doubled: 'it''s'.
struct Word {
  std::string text;
  bool quoted = false;
  size_t column = 0;  // from 1
};

class ExpressionReader {
 public:
  // `option` names the text in errors: "--loss".
  ExpressionReader(std::string option, std::string text) : option_(std::move(option)), text_(std::move(text)) {}

  bool at_end();
  size_t column();  // of the next token
  bool at(char c);
  bool take(char c);                        // reads c if it comes next
  void expect(char c, const char* before);  // reads c, or fails with "expected 'c' before ..."
  bool at_number();                         // a digit or a point, after an optional sign
  bool at_word();
  double number();
  Word word(const char* what);  // `what` describes it in errors: "the name of a loss"
  // `code` is of the kind kUsage.
  [[noreturn]] void fail_at(size_t column, const std::string& reason, ErrorCode code = ErrorCode::kExpression) const;

 private:
  void skip_spaces();
  char next() const { return position_ < text_.size() ? text_[position_] : '\0'; }
  std::string found();

  std::string option_, text_;
  size_t position_ = 0;
};

// (0.9, 0.999)
struct NumberTuple {
  std::vector<double> numbers;  // two or more
};

// `key=value` of a call: a number (true is 1, false 0), a tuple of numbers, a name, or a list of numbers: [1, 2, 0.5].
struct Option {
  Word key;
  std::variant<double, NumberTuple, Word, std::vector<double>> value;
  size_t column = 0;  // of the value
};

// The arguments of a call: names first, then options.
struct Arguments {
  std::vector<Word> names;
  std::vector<Option> options;
};

// Reads the value of the option `key`, after "=".
Option read_option(ExpressionReader* reader, Word key);
// Reads "(...)" if it comes next.
Arguments read_arguments(ExpressionReader* reader);

// The shortest text that parses to the same number: "0.1", "1e-08".
std::string number_text(double value);
// The text without spaces, tabs and line ends before and after it.
std::string stripped(const std::string& text);
// The word as an expression writes it: quoted unless it is an identifier.
std::string quoted_if_needed(const std::string& name);
// Those of `candidates` that are most similar to `name`, for messages: "'fc1.weight', 'fc2.weight'"; "" if none is
// similar.
std::string similar_names(const std::string& name, const std::vector<std::string>& candidates);
// The end of a message about an unknown name: "; did you mean 'adamw'?", or "".
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace onnx_train
