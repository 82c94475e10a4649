// A chat template as a program: statements that write text. It is Jinja's language (https://jinja.palletsprojects.com)
// as chat templates have it: output, for, if, set, macro, break, continue, and generation of transformers, with the
// filters and tests of template_calls.h. A program belongs to one thread. Errors are Error, and name the line.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/chats/template_value.h"

namespace onnx_train::chats {

// Names and what they are, within those around.
class Scope {
 public:
  explicit Scope(Scope* outer) : outer_(outer) {}

  Value find(const std::string& name) const;  // undefined if there is none
  void set(const std::string& name, Value value) { put(&values_, name, std::move(value)); }
  // Throws Error once a template has run a million statements.
  void count_statement();
  Scope* outermost() { return outer_ ? outer_->outermost() : this; }

 private:
  Dict values_;
  Scope* outer_;
  int64_t statements_ = 0;  // of the outermost scope
};

// What was written, and the parts of it that {% generation %} marks, [begin, end).
struct Written {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generated;
};

enum class Flow { kGoOn, kBreak, kContinue };
using Expression = std::function<Value(Scope*)>;
using Statement = std::function<Flow(Scope*, Written*)>;

class TemplateProgram {
 public:
  explicit TemplateProgram(const std::string& source);

  Written run(const Dict& variables) const;
  bool marks_generation() const { return marks_generation_; }

 private:
  Statement body_;
  bool marks_generation_ = false;
};

}  // namespace onnx_train::chats
