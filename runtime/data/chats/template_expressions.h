// The tokens of a template, one after the other, and expressions of them. Errors are Error, and name the line.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/chats/template_lexer.h"
#include "runtime/data/chats/template_program.h"

namespace onnx_train::chats {

class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens);

  const Token& next() const { return tokens_[at_]; }
  bool at_end() const { return at_ + 1 == tokens_.size(); }
  Token take() { return at_end() ? tokens_[at_] : tokens_[at_++]; }
  bool take_sign(const char* sign);
  bool take_name(const char* name);
  void expect_sign(const char* sign);
  void expect_end();  // of {{ }} or {% %}
  std::string expect_name();
  // The next tokens are {% name.
  bool at_statement(const char* name) const;

  Expression expression();  // with "if" and "else"
  // Without them: "for x in y if z" has an "if" of its own.
  Expression without_condition() { return any(); }
  // a or a, b: a list where there are several.
  Expression expressions();

 private:
  void count_operator();
  Expression any();
  Expression all();
  Expression negation();
  Expression comparison();
  Expression sum();
  Expression joined();
  Expression product();
  Expression sign();
  Expression with_calls();
  Expression primary();
  Expression list_until(const char* sign);
  Expression dictionary();
  Expression call(Expression function);
  Expression subscript(Expression of);
  Expression filter(Expression of);
  Expression test(Expression of);
  using MadeArguments = std::function<Arguments(Scope*)>;
  MadeArguments arguments();  // up to ")"

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, operators_ = 0;
};

}  // namespace onnx_train::chats
