#include "runtime/data/chats/template_program.h"

#include "onnx_passes/ir/error.h"
#include "runtime/data/chats/template_calls.h"
#include "runtime/data/chats/template_expressions.h"

namespace onnx_train::chats {
namespace {

using Kind = Token::Kind;

Flow run_all(const std::vector<Statement>& statements, Scope* scope, Written* written) {
  constexpr size_t kMostBytes = size_t{1} << 26;
  for (const Statement& statement : statements) {
    scope->count_statement();
    if (const Flow flow = statement(scope, written); flow != Flow::kGoOn) return flow;
    if (written->text.size() > kMostBytes) fail("the template writes more than ", kMostBytes, " bytes");
  }
  return Flow::kGoOn;
}

// What a loop knows of itself.
Value loop_value(const List& items, size_t i) {
  const auto whole = [](size_t n) { return Value(Value::Data(static_cast<int64_t>(n))); };
  const auto item = [&](bool is, size_t at) { return is ? items[at] : Value(Value::Data(Undefined{"item"})); };
  return Value::dict({{"index", whole(i + 1)},
                      {"index0", whole(i)},
                      {"revindex", whole(items.size() - i)},
                      {"revindex0", whole(items.size() - i - 1)},
                      {"first", Value(Value::Data(i == 0))},
                      {"last", Value(Value::Data(i + 1 == items.size()))},
                      {"length", whole(items.size())},
                      {"previtem", item(i > 0, i - 1)},
                      {"nextitem", item(i + 1 < items.size(), i + 1)}});
}

void assign(const std::vector<std::string>& names, const Value& value, Scope* scope) {
  if (names.size() == 1) return scope->set(names[0], value);
  const List items = value.items();
  if (items.size() != names.size()) fail(items.size(), " values for ", names.size(), " names");
  for (size_t i = 0; i < names.size(); ++i) scope->set(names[i], items[i]);
}

struct Parameter {
  std::string name;
  Expression otherwise;  // null: it has to be given
};

class Parser {
 public:
  explicit Parser(const std::string& source) : reader_(tokens_of_template(source)) {}

  Statement program() {
    Statement body = statements({});
    if (!reader_.at_end()) unexpected();
    return body;
  }
  bool marks_generation() const { return marks_generation_; }

 private:
  [[noreturn]] void unexpected() {
    const int64_t line = reader_.next().line;
    reader_.take();
    fail("line ", line, ": {% ", reader_.next().text, " %} is not known here, or stands in no place for it");
  }

  void deepen() {
    constexpr int kDeepest = 40;
    if (++depth_ > kDeepest)
      fail("line ", reader_.next().line, ": statements in statements are deeper than ", kDeepest);
  }

  // Statements up to one of these names.
  Statement statements(const std::vector<const char*>& ends) {
    deepen();
    std::vector<Statement> all;
    while (!reader_.at_end()) {
      bool is_end = false;
      for (const char* end : ends) is_end = is_end || reader_.at_statement(end);
      if (is_end) break;
      all.push_back(statement());
    }
    if (!ends.empty() && reader_.at_end()) fail("line ", reader_.next().line, ": {% ", ends.back(), " %} is missing");
    --depth_;
    return [all](Scope* scope, Written* written) { return run_all(all, scope, written); };
  }

  Statement statement() {
    const Kind kind = reader_.next().kind;
    const int64_t line = reader_.next().line;
    if (kind == Kind::kText) {
      return [text = reader_.take().text](Scope*, Written* written) {
        written->text += text;
        return Flow::kGoOn;
      };
    }
    if (kind == Kind::kOutput) {
      reader_.take();
      Expression value = reader_.expressions();
      reader_.expect_end();
      return at_line(line, [value](Scope* scope, Written* written) {
        written->text += value(scope).shown();
        return Flow::kGoOn;
      });
    }
    using Rule = Statement (Parser::*)();
    static constexpr std::pair<const char*, Rule> kRules[] = {
        {"for", &Parser::loop},         {"if", &Parser::condition},   {"set", &Parser::assignment},
        {"macro", &Parser::macro},      {"break", &Parser::end_loop}, {"continue", &Parser::next_round},
        {"generation", &Parser::marked}};
    for (const auto& [name, rule] : kRules) {
      if (!reader_.at_statement(name)) continue;
      reader_.take();
      reader_.take();
      return at_line(line, (this->*rule)());
    }
    unexpected();
  }

  // Errors of the statement itself name its line; those within it have named theirs.
  static Statement at_line(int64_t line, Statement statement) {
    return [line, statement](Scope* scope, Written* written) {
      try {
        return statement(scope, written);
      } catch (const Error& error) {
        const std::string what = error.what();
        if (what.starts_with("line ")) throw;
        fail("line ", line, ": ", what);
      }
    };
  }

  void end_of(const char* name) {
    reader_.take();
    if (!reader_.take_name(name)) fail("line ", reader_.next().line, ": {% ", name, " %} is expected");
    reader_.expect_end();
  }

  Statement loop() {
    std::vector<std::string> names = {reader_.expect_name()};
    while (reader_.take_sign(",")) names.push_back(reader_.expect_name());
    if (!reader_.take_name("in")) fail("line ", reader_.next().line, ": 'in' is missing in a loop");
    Expression over = reader_.without_condition();
    Expression only = reader_.take_name("if") ? reader_.expression() : Expression();
    reader_.expect_end();
    Statement body = statements({"else", "endfor"}), otherwise;
    if (reader_.at_statement("else")) {
      end_of("else");
      otherwise = statements({"endfor"});
    }
    end_of("endfor");
    return [=](Scope* scope, Written* written) {
      List items;
      for (const Value& item : over(scope).items()) {
        Scope inner(scope);
        assign(names, item, &inner);
        if (!only || only(&inner).truth()) items.push_back(item);
      }
      if (items.empty() && otherwise) return otherwise(scope, written);
      for (size_t i = 0; i < items.size(); ++i) {
        Scope inner(scope);
        assign(names, items[i], &inner);
        inner.set("loop", loop_value(items, i));
        if (body(&inner, written) == Flow::kBreak) break;
      }
      return Flow::kGoOn;
    };
  }

  Statement condition() {
    Expression holds = reader_.expression();
    reader_.expect_end();
    Statement body = statements({"elif", "else", "endif"}), otherwise;
    if (reader_.at_statement("elif")) {
      reader_.take();
      reader_.take();
      deepen();
      otherwise = condition();  // up to the endif of both
      --depth_;
    } else {
      if (reader_.at_statement("else")) {
        end_of("else");
        otherwise = statements({"endif"});
      }
      end_of("endif");
    }
    return [=](Scope* scope, Written* written) {
      if (holds(scope).truth()) return body(scope, written);
      return otherwise ? otherwise(scope, written) : Flow::kGoOn;
    };
  }

  // name = value, namespace.name = value, or the text up to endset.
  Statement assignment() {
    std::vector<std::string> names = {reader_.expect_name()};
    const std::string field = reader_.take_sign(".") ? reader_.expect_name() : "";
    while (field.empty() && reader_.take_sign(",")) names.push_back(reader_.expect_name());
    Expression value;
    if (reader_.take_sign("=")) {
      value = reader_.expressions();
      reader_.expect_end();
    } else {
      reader_.expect_end();
      Statement body = statements({"endset"});
      end_of("endset");
      value = [body](Scope* scope) {
        Written written;
        body(scope, &written);
        return Value::text(written.text);
      };
    }
    return [=](Scope* scope, Written*) {
      if (field.empty()) {
        assign(names, value(scope), scope);
        return Flow::kGoOn;
      }
      const Value of = scope->find(names[0]);
      if (!of.as_namespace()) fail("'", names[0], "' is no namespace");
      const Value given = value(scope);
      given.extent();  // no namespace
      put(&of.as_namespace()->fields, field, given);
      return Flow::kGoOn;
    };
  }

  Statement macro() {
    const std::string name = reader_.expect_name();
    std::vector<Parameter> parameters;
    reader_.expect_sign("(");
    while (!reader_.take_sign(")")) {
      std::string parameter = reader_.expect_name();
      parameters.push_back({parameter, reader_.take_sign("=") ? reader_.expression() : Expression()});
      if (!reader_.next().is_sign(")")) reader_.expect_sign(",");
    }
    reader_.expect_end();
    Statement body = statements({"endmacro"});
    end_of("endmacro");
    auto depth = std::make_shared<int>(0);
    return [=](Scope* scope, Written*) {
      Scope* const around = scope->outermost();
      scope->set(name, Value::function([=](const Arguments& arguments) {
                   Scope inner(around);
                   for (size_t i = 0; i < parameters.size(); ++i) {
                     const auto& [parameter, otherwise] = parameters[i];
                     const Value* given = arguments.find(i, parameter);
                     inner.set(parameter, given       ? *given
                                          : otherwise ? otherwise(&inner)
                                                      : Value(Value::Data(Undefined{parameter})));
                   }
                   return called(name, body, &inner, depth.get());
                 }));
      return Flow::kGoOn;
    };
  }

  // What the body of a macro writes.
  static Value called(const std::string& name, const Statement& body, Scope* scope, int* depth) {
    constexpr int kDeepest = 16;
    if (*depth == kDeepest) fail("the macro '", name, "' calls itself more than ", kDeepest, " times");
    const std::unique_ptr<int, void (*)(int*)> deeper(&++*depth, [](int* d) { --*d; });
    Written written;
    body(scope, &written);
    return Value::text(written.text);
  }

  Statement end_loop() { return leaving(Flow::kBreak); }
  Statement next_round() { return leaving(Flow::kContinue); }
  Statement leaving(Flow flow) {
    reader_.expect_end();
    return [flow](Scope*, Written*) { return flow; };
  }

  Statement marked() {
    reader_.expect_end();
    Statement body = statements({"endgeneration"});
    end_of("endgeneration");
    marks_generation_ = true;
    return [body](Scope* scope, Written* written) {
      const size_t begin = written->text.size();
      const Flow flow = body(scope, written);
      written->generated.emplace_back(begin, written->text.size());
      return flow;
    };
  }

  TokenReader reader_;
  int depth_ = 0;
  bool marks_generation_ = false;
};

}  // namespace

Value Scope::find(const std::string& name) const {
  if (const Value* value = chats::find(values_, name)) return *value;
  return outer_ ? outer_->find(name) : Value(Value::Data(Undefined{name}));
}

// A template is a file from elsewhere: loops in loops must end.
void Scope::count_statement() {
  constexpr int64_t kMost = int64_t{1} << 20;
  if (++outermost()->statements_ > kMost) fail("the template runs more than ", kMost, " statements");
}

TemplateProgram::TemplateProgram(const std::string& source) {
  Parser parser(source);
  body_ = parser.program();
  marks_generation_ = parser.marks_generation();
}

Written TemplateProgram::run(const Dict& variables) const {
  Scope scope(nullptr);
  for (const auto& [name, value] : known_functions()) scope.set(name, value);
  for (const auto& [name, value] : variables) scope.set(name, value);
  Written written;
  body_(&scope, &written);
  return written;
}

}  // namespace onnx_train::chats
