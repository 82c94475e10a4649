#include "runtime/data/chats/template_expressions.h"

#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/data/chats/template_calls.h"

namespace onnx_train::chats {
namespace {

using Kind = Token::Kind;

Expression constant(Value value) {
  return [value = std::move(value)](Scope*) { return value; };
}

Value truth_value(bool b) { return Value(Value::Data(b)); }

int64_t floor_division(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

Value calculated(const std::string& sign, const Value& a, const Value& b) {
  if (sign == "+" && a.as<std::string>()) return Value::text(a.str() + b.str());
  if (sign == "+" && a.as_list() && b.as_list()) {
    List both = *a.as_list();
    both.insert(both.end(), b.as_list()->begin(), b.as_list()->end());
    return Value::list(std::move(both));
  }
  if (sign == "*" && a.as<std::string>()) {
    constexpr size_t kMostBytes = size_t{1} << 20;
    std::string text;
    for (int64_t i = 0; i < b.integer() && text.size() < kMostBytes; ++i) text += a.str();
    return Value::text(text);
  }
  if (a.as<double>() || b.as<double>() || sign == "/") {
    const double x = a.number(), y = b.number();
    if (y == 0 && sign != "+" && sign != "-" && sign != "*") fail("a division by 0");
    return Value(Value::Data(sign == "+"    ? x + y
                             : sign == "-"  ? x - y
                             : sign == "*"  ? x * y
                             : sign == "/"  ? x / y
                             : sign == "//" ? std::floor(x / y)
                                            : x - std::floor(x / y) * y));
  }
  const auto x = static_cast<uint64_t>(a.integer()), y = static_cast<uint64_t>(b.integer());  // which may wrap around
  if (sign == "+" || sign == "-" || sign == "*") {
    return Value(Value::Data(static_cast<int64_t>(sign == "+" ? x + y : sign == "-" ? x - y : x * y)));
  }
  if (b.integer() == 0 || b.integer() == -1) {
    if (b.integer() == 0) fail("a division by 0");
    return Value(Value::Data(sign == "//" ? static_cast<int64_t>(0 - x) : int64_t{0}));
  }
  const int64_t quotient = floor_division(a.integer(), b.integer());
  return Value(Value::Data(sign == "//" ? quotient : a.integer() - quotient * b.integer()));
}

bool compared(const std::string& sign, const Value& a, const Value& b) {
  if (sign == "==") return equal(a, b);
  if (sign == "!=") return !equal(a, b);
  if (sign == "<") return less(a, b);
  if (sign == ">") return less(b, a);
  return sign == "<=" ? !less(b, a) : !less(a, b);
}

}  // namespace

TokenReader::TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  tokens_.push_back({Kind::kEnd, "", tokens_.empty() ? 1 : tokens_.back().line});
}

bool TokenReader::take_sign(const char* sign) {
  const bool is = next().is_sign(sign);
  if (is) take();
  return is;
}

bool TokenReader::take_name(const char* name) {
  const bool is = next().is_name(name);
  if (is) take();
  return is;
}

void TokenReader::expect_sign(const char* sign) {
  if (!take_sign(sign)) fail("line ", next().line, ": '", sign, "' is expected before '", next().text, "'");
}

void TokenReader::count_operator() {
  constexpr int kMost = 300;  // which call each other when the expression is evaluated
  if (++operators_ > kMost) fail("line ", next().line, ": an expression has more than ", kMost, " operators");
}

void TokenReader::expect_end() {
  operators_ = 0;
  if (next().kind != Kind::kEnd) fail("line ", next().line, ": '", next().text, "' is not expected");
  take();
}

std::string TokenReader::expect_name() {
  if (next().kind != Kind::kName) fail("line ", next().line, ": a name is expected before '", next().text, "'");
  return take().text;
}

bool TokenReader::at_statement(const char* name) const {
  return next().kind == Kind::kStatement && at_ + 1 < tokens_.size() && tokens_[at_ + 1].is_name(name);
}

Expression TokenReader::expressions() {
  std::vector<Expression> parts = {expression()};
  bool is_list = false;
  while (take_sign(",")) {
    is_list = true;
    if (next().kind == Kind::kEnd) break;
    parts.push_back(expression());
  }
  if (!is_list) return parts[0];
  return [parts](Scope* scope) {
    List items;
    for (const Expression& part : parts) items.push_back(part(scope));
    return Value::list(std::move(items));
  };
}

Expression TokenReader::expression() {
  constexpr int kDeepest = 50;
  if (++depth_ > kDeepest) fail("line ", next().line, ": expressions in expressions are deeper than ", kDeepest);
  Expression value = any();
  while (take_name("if")) {
    count_operator();
    Expression condition = any();
    Expression otherwise = take_name("else") ? expression() : constant(Value(Value::Data(Undefined{"else"})));
    value = [value, condition, otherwise](Scope* scope) {
      return condition(scope).truth() ? value(scope) : otherwise(scope);
    };
  }
  --depth_;
  return value;
}

Expression TokenReader::any() {
  Expression left = all();
  while (take_name("or")) {
    count_operator();
    Expression right = all();
    left = [left, right](Scope* scope) {
      Value first = left(scope);
      return first.truth() ? first : right(scope);
    };
  }
  return left;
}

Expression TokenReader::all() {
  Expression left = negation();
  while (take_name("and")) {
    count_operator();
    Expression right = negation();
    left = [left, right](Scope* scope) {
      Value first = left(scope);
      return first.truth() ? right(scope) : first;
    };
  }
  return left;
}

Expression TokenReader::negation() {
  int64_t count = 0;
  while (take_name("not")) ++count;
  Expression of = comparison();
  if (count == 0) return of;
  return [of, count](Scope* scope) { return truth_value(of(scope).truth() == (count % 2 == 0)); };
}

Expression TokenReader::comparison() {
  std::vector<std::pair<std::string, Expression>> rest;
  Expression first = sum();
  for (;;) {
    std::string sign = next().text;
    if (next().kind == Kind::kSign &&
        (sign == "==" || sign == "!=" || sign == "<" || sign == ">" || sign == "<=" || sign == ">=")) {
      take();
    } else if (take_name("in")) {
      sign = "in";
    } else if (next().is_name("not") && tokens_[at_ + 1].is_name("in")) {
      take();
      take();
      sign = "not in";
    } else {
      break;
    }
    rest.emplace_back(sign, sum());
  }
  if (rest.empty()) return first;
  return [first, rest](Scope* scope) {
    Value left = first(scope);
    for (const auto& [sign, expression] : rest) {
      Value right = expression(scope);
      const bool holds = sign == "in"       ? contains(right, left)
                         : sign == "not in" ? !contains(right, left)
                                            : compared(sign, left, right);
      if (!holds) return truth_value(false);
      left = std::move(right);
    }
    return truth_value(true);
  };
}

Expression TokenReader::sum() {
  Expression left = joined();
  while (next().is_sign("+") || next().is_sign("-")) {
    count_operator();
    const std::string sign = take().text;
    Expression right = joined();
    left = [left, right, sign](Scope* scope) { return calculated(sign, left(scope), right(scope)); };
  }
  return left;
}

Expression TokenReader::joined() {
  Expression left = product();
  while (take_sign("~")) {
    count_operator();
    Expression right = product();
    left = [left, right](Scope* scope) { return Value::text(left(scope).shown() + right(scope).shown()); };
  }
  return left;
}

Expression TokenReader::product() {
  Expression left = sign();
  while (next().is_sign("*") || next().is_sign("/") || next().is_sign("//") || next().is_sign("%")) {
    count_operator();
    const std::string sign_text = take().text;
    Expression right = sign();
    left = [left, right, sign_text](Scope* scope) { return calculated(sign_text, left(scope), right(scope)); };
  }
  return left;
}

Expression TokenReader::sign() {
  bool is_negative = false;
  while (next().is_sign("-") || next().is_sign("+")) is_negative = is_negative != (take().text == "-");
  Expression of = with_calls();
  if (!is_negative) return of;
  return [of](Scope* scope) { return calculated("-", Value(Value::Data(int64_t{0})), of(scope)); };
}

Expression TokenReader::with_calls() {
  Expression value = primary();
  for (;; count_operator()) {
    if (take_sign(".")) {
      const std::string name = expect_name();
      value = [value, name](Scope* scope) { return attribute(value(scope), name); };
    } else if (take_sign("[")) {
      value = subscript(value);
    } else if (take_sign("(")) {
      value = call(value);
    } else if (take_sign("|")) {
      value = filter(value);
    } else if (take_name("is")) {
      value = test(value);
    } else {
      return value;
    }
  }
}

Expression TokenReader::subscript(Expression of) {
  std::vector<Expression> parts = {next().is_sign(":") ? constant({}) : expression()};
  while (take_sign(":")) parts.push_back(next().is_sign(":") || next().is_sign("]") ? constant({}) : expression());
  expect_sign("]");
  if (parts.size() == 1) {
    return [of, index = parts[0]](Scope* scope) { return element(of(scope), index(scope)); };
  }
  parts.resize(3, constant({}));
  return [of, parts](Scope* scope) { return slice(of(scope), parts[0](scope), parts[1](scope), parts[2](scope)); };
}

TokenReader::MadeArguments TokenReader::arguments() {
  std::vector<std::pair<std::string, Expression>> parts;  // with a name, or ""
  while (!take_sign(")")) {
    const bool is_named = next().kind == Kind::kName && tokens_[at_ + 1].is_sign("=");
    const std::string name = is_named ? take().text : "";
    if (is_named) take();
    parts.emplace_back(name, expression());
    if (!next().is_sign(")")) expect_sign(",");
  }
  return [parts](Scope* scope) {
    Arguments arguments;
    for (const auto& [name, value] : parts) {
      if (name.empty())
        arguments.values.push_back(value(scope));
      else
        put(&arguments.named, name, value(scope));
    }
    return arguments;
  };
}

Expression TokenReader::call(Expression function) {
  const int64_t line = next().line;
  return [function, line, with = arguments()](Scope* scope) {
    const Value called = function(scope);
    if (const auto* f = called.as<std::shared_ptr<Function>>()) return (**f)(with(scope));
    const auto* undefined = called.as<Undefined>();
    fail("line ", line, ": ", undefined ? undefined->name : called.type(), " is no function that is known here");
  };
}

Expression TokenReader::filter(Expression of) {
  const std::string name = expect_name();
  const MadeArguments with = take_sign("(") ? arguments() : [](Scope*) { return Arguments(); };
  return [of, name, with](Scope* scope) { return filtered(name, of(scope), with(scope)); };
}

Expression TokenReader::test(Expression of) {
  const bool is_not = take_name("not");
  const std::string name = next().kind == Kind::kSign ? take().text : expect_name();
  MadeArguments with = [](Scope*) { return Arguments(); };
  if (take_sign("(")) {
    with = arguments();
  } else if (next().kind == Kind::kString || next().kind == Kind::kInteger ||
             (next().kind == Kind::kName && name != "defined" &&
              (name == "in" || name == "equalto" || name == "eq" || name == "ne" || name == "sameas")) ||
             next().is_sign("[")) {
    with = [one = with_calls()](Scope* scope) { return Arguments{{one(scope)}, {}}; };
  }
  return [of, name, with, is_not](Scope* scope) { return truth_value(tested(name, of(scope), with(scope)) != is_not); };
}

Expression TokenReader::list_until(const char* sign) {
  std::vector<Expression> parts;
  bool has_comma = false;
  while (!take_sign(sign)) {
    parts.push_back(expression());
    if (next().is_sign(sign)) continue;
    expect_sign(",");
    has_comma = true;
  }
  if (*sign == ')' && parts.size() == 1 && !has_comma) return parts[0];
  return [parts](Scope* scope) {
    List items;
    for (const Expression& part : parts) items.push_back(part(scope));
    return Value::list(std::move(items));
  };
}

Expression TokenReader::dictionary() {
  std::vector<std::pair<Expression, Expression>> parts;
  while (!take_sign("}")) {
    Expression key = expression();
    expect_sign(":");
    parts.emplace_back(key, expression());
    if (!next().is_sign("}")) expect_sign(",");
  }
  return [parts](Scope* scope) {
    Dict items;
    for (const auto& [key, value] : parts) put(&items, key(scope).str(), value(scope));
    return Value::dict(std::move(items));
  };
}

Expression TokenReader::primary() {
  const Token token = take();
  switch (token.kind) {
    case Kind::kString: {
      std::string text = token.text;  // texts that follow each other are one
      while (next().kind == Kind::kString) text += take().text;
      return constant(Value::text(text));
    }
    case Kind::kInteger:
      if (token.text.size() > 18) fail("line ", token.line, ": the number ", token.text, " is too large");
      return constant(Value(Value::Data(static_cast<int64_t>(std::stoll(token.text)))));
    case Kind::kFloat: return constant(Value(Value::Data(std::strtod(token.text.c_str(), nullptr))));
    case Kind::kSign:
      if (token.text == "(") return list_until(")");
      if (token.text == "[") return list_until("]");
      if (token.text == "{") return dictionary();
      break;
    case Kind::kName: {
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(truth_value(true));
      if (name == "false" || name == "False") return constant(truth_value(false));
      if (name == "none" || name == "None") return constant({});
      return [name](Scope* scope) { return scope->find(name); };
    }
    default: break;
  }
  fail("line ", token.line, ": an expression is expected",
       token.text.empty() ? "" : concat(" before '", token.text, "'"));
}

}  // namespace onnx_train::chats
