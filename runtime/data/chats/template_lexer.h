// The parts of a chat template, in the settings that transformers has for Jinja: trim_blocks, lstrip_blocks, and no
// newline at the end. Values. Errors are Error and name the line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnx_train::chats {

struct Token {
  enum class Kind { kText, kName, kString, kInteger, kFloat, kSign, kStatement, kOutput, kEnd };
  Kind kind;
  std::string text;  // of kSign one of Jinja's, of kStatement and kOutput empty: what follows up to kEnd is in one
  int64_t line;

  bool is(Kind of, const char* spelled) const { return kind == of && text == spelled; }
  bool is_sign(const char* spelled) const { return is(Kind::kSign, spelled); }
  bool is_name(const char* spelled) const { return is(Kind::kName, spelled); }
};

// {{ a }} is kOutput, the tokens of a, kEnd; {% a %} is kStatement, the tokens of a, kEnd.
std::vector<Token> tokens_of_template(const std::string& source);

}  // namespace onnx_train::chats
