#include "runtime/data/chats/template_calls.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "onnx_passes/ir/error.h"
#include "platform/clock.h"
#include "runtime/data/chats/template_texts.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train::chats {
namespace {

constexpr int64_t kMostItems = 1 << 20;

std::string indented(const std::string& text, const Arguments& arguments) {
  const Value width = argument(arguments, 0, "width", number(4));
  const std::string blanks = width.as<std::string>()
                                 ? width.str()
                                 : std::string(static_cast<size_t>(std::clamp<int64_t>(width.integer(), 0, 1024)), ' ');
  const bool first = argument(arguments, 1, "first", boolean(false)).truth(),
             blank = argument(arguments, 2, "blank", boolean(false)).truth();
  std::string made;
  size_t at = 0;
  for (bool is_first = true; at <= text.size(); is_first = false) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    made += concat(is_first ? "" : "\n", (is_first ? first : blank || !line.empty()) ? blanks : "", line);
    at = end + 1;
  }
  return made;
}

// The items whose attribute, or that themselves, pass a test.
Value selected(const Value& value, Arguments arguments, bool by_attribute, bool keeps) {
  const auto next = [&](const char* what) {
    if (arguments.values.empty()) fail(what, " is missing");
    const std::string text = arguments.values[0].str();
    arguments.values.erase(arguments.values.begin());
    return text;
  };
  const std::string name = by_attribute ? next("select's attribute") : "";
  const std::string test = arguments.values.empty() ? "" : next("");
  List chosen;
  for (const Value& item : value.items()) {
    const Value of = by_attribute ? attribute(item, name) : item;
    if ((test.empty() ? of.truth() : tested(test, of, arguments)) == keeps) chosen.push_back(item);
  }
  return Value::list(chosen);
}

Value mapped(const Value& value, Arguments arguments) {
  List made;
  const Value* name = find(arguments.named, "attribute");
  const std::string filter = name ? "" : argument(arguments, 0, "", {}).str();
  if (!name) arguments.values.erase(arguments.values.begin());
  for (const Value& item : value.items())
    made.push_back(name ? attribute(item, name->str()) : filtered(filter, item, arguments));
  return Value::list(made);
}

using Filter = Value (*)(const Value&, const Arguments&);

Value as_integer(const Value& value) {
  if (value.is_number()) return number(static_cast<int64_t>(value.number()));
  try {
    return number(std::stoll(value.str()));
  } catch (const std::logic_error&) {
    return number(0);
  }
}

Value length_of(const Value& value) { return number(std::ssize(value.items())); }

Value end_of(const Value& value, bool last) {
  const List items = value.items();
  if (items.empty()) return Value(Value::Data(Undefined{"item"}));
  return last ? items.back() : items.front();
}

Value reversed(const Value& value) {
  List items = value.items();
  std::ranges::reverse(items);
  return value.as<std::string>() ? Value::text(joined(Value::list(items), "")) : Value::list(items);
}

const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> filters = {
      {"trim",
       [](const Value& v, const Arguments& a) {
         return Value::text(stripped(v.shown(), argument(a, 0, "chars", {}), true, true));
       }},
      {"length", [](const Value& v, const Arguments&) { return length_of(v); }},
      {"count", [](const Value& v, const Arguments&) { return length_of(v); }},
      {"tojson",
       [](const Value& v, const Arguments& a) {
         const Value indent = argument(a, 1, "indent", {});
         return Value::text(v.json(indent.is_none() ? -1 : std::clamp<int64_t>(indent.integer(), 0, 64)));
       }},
      {"string", [](const Value& v, const Arguments&) { return Value::text(v.shown()); }},
      {"safe", [](const Value& v, const Arguments&) { return v; }},
      {"list", [](const Value& v, const Arguments&) { return Value::list(v.items()); }},
      {"items",
       [](const Value& v, const Arguments&) { return v.as_dict() ? pairs_of(*v.as_dict()) : Value::list({}); }},
      {"int", [](const Value& v, const Arguments&) { return as_integer(v); }},
      {"first", [](const Value& v, const Arguments&) { return end_of(v, false); }},
      {"last", [](const Value& v, const Arguments&) { return end_of(v, true); }},
      {"reverse", [](const Value& v, const Arguments&) { return reversed(v); }},
      {"join", [](const Value& v,
                  const Arguments& a) { return Value::text(joined(v, argument(a, 0, "d", Value::text("")).shown())); }},
      {"default",
       [](const Value& v, const Arguments& a) {
         const bool other = v.is_undefined() || (argument(a, 1, "boolean", boolean(false)).truth() && !v.truth());
         return other ? argument(a, 0, "default_value", Value::text("")) : v;
       }},
      {"title",
       [](const Value& v, const Arguments&) {
         // Jinja's words, unlike those of the method, have apostrophes.
         return Value::text(capitalized(v.shown(), [](char32_t code) {
           return is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
         }));
       }},
      {"indent", [](const Value& v, const Arguments& a) { return Value::text(indented(v.str(), a)); }},
      {"map", [](const Value& v, const Arguments& a) { return mapped(v, a); }},
      {"selectattr", [](const Value& v, const Arguments& a) { return selected(v, a, true, true); }},
      {"rejectattr", [](const Value& v, const Arguments& a) { return selected(v, a, true, false); }},
      {"select", [](const Value& v, const Arguments& a) { return selected(v, a, false, true); }},
      {"reject", [](const Value& v, const Arguments& a) { return selected(v, a, false, false); }},
  };
  return filters;
}

using Test = bool (*)(const Value&, const Arguments&);

const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> tests = {
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"string", [](const Value& v, const Arguments&) { return v.as<std::string>() != nullptr; }},
      {"mapping", [](const Value& v, const Arguments&) { return v.as_dict() != nullptr; }},
      {"sequence", [](const Value& v, const Arguments&) { return v.as_list() || v.as_dict() || v.as<std::string>(); }},
      {"iterable",
       [](const Value& v, const Arguments&) {
         return v.as_list() || v.as_dict() || v.as<std::string>() || v.is_undefined();
       }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"integer", [](const Value& v, const Arguments&) { return v.as<int64_t>() != nullptr; }},
      {"float", [](const Value& v, const Arguments&) { return v.as<double>() != nullptr; }},
      {"boolean", [](const Value& v, const Arguments&) { return v.as<bool>() != nullptr; }},
      {"true", [](const Value& v, const Arguments&) { return v.as<bool>() && *v.as<bool>(); }},
      {"false", [](const Value& v, const Arguments&) { return v.as<bool>() && !*v.as<bool>(); }},
      {"odd", [](const Value& v, const Arguments&) { return v.integer() % 2 != 0; }},
      {"even", [](const Value& v, const Arguments&) { return v.integer() % 2 == 0; }},
      {"callable", [](const Value& v, const Arguments&) { return v.as<std::shared_ptr<Function>>() != nullptr; }},
      {"in", [](const Value& v, const Arguments& a) { return contains(argument(a, 0, "seq", {}), v); }},
      {"equalto", [](const Value& v, const Arguments& a) { return equal(v, argument(a, 0, "", {})); }},
      {"ne", [](const Value& v, const Arguments& a) { return !equal(v, argument(a, 0, "", {})); }},
  };
  return tests;
}

// Python's places: from the end if they are negative.
int64_t place_in(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

Value range_of(const Arguments& a) {
  const bool one = a.values.size() < 2;
  const int64_t from = one ? 0 : a.values[0].integer(), to = argument(a, one ? 0 : 1, "", {}).integer(),
                step = argument(a, 2, "", number(1)).integer();
  if (step == 0) fail("range: the step is 0");
  List items;
  for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
    if (std::ssize(items) == kMostItems) fail("range: there are more than ", kMostItems, " numbers");
    items.push_back(number(i));
  }
  return Value::list(items);
}

std::string today(const std::string& form) {
  const std::tm date = platform::local_time(std::time(nullptr));
  std::string text(256, '\0');
  text.resize(std::strftime(text.data(), text.size(), form.c_str(), &date));
  return text;
}

}  // namespace

Value filtered(const std::string& filter, const Value& value, const Arguments& arguments) {
  const std::string name = filter == "d" ? "default" : filter;
  if (const auto found = filters().find(name); found != filters().end()) return found->second(value, arguments);
  // Methods of texts that are filters, too.
  for (const char* method : {"upper", "lower", "capitalize", "replace"}) {
    if (name != method) continue;
    const Value call = attribute(Value::text(value.shown()), method);
    return (**call.as<std::shared_ptr<Function>>())(arguments);
  }
  fail("the filter '", filter, "' is not known here");
}

bool tested(const std::string& test, const Value& value, const Arguments& arguments) {
  const std::string name = test == "eq" || test == "==" ? "equalto" : test == "!=" ? "ne" : test;
  const auto found = tests().find(name);
  if (found == tests().end()) fail("the test '", test, "' is not known here");
  return found->second(value, arguments);
}

Value element(const Value& value, const Value& index) {
  if (index.as<std::string>()) return attribute(value, index.str());
  if (value.as_dict()) return Value(Value::Data(Undefined{index.shown()}));
  const List items = value.is_undefined() ? (attribute(value, index.shown()), List()) : value.items();
  const int64_t at = place_in(index.integer(), std::ssize(items));
  if (at < 0 || at >= std::ssize(items)) return Value(Value::Data(Undefined{index.shown()}));
  return items[static_cast<size_t>(at)];
}

Value slice(const Value& value, const Value& from, const Value& to, const Value& step) {
  const List items = value.items();
  const int64_t size = std::ssize(items), by = step.is_none() ? 1 : step.integer();
  if (by == 0) fail("the step of a slice is 0");
  const int64_t least = by > 0 ? 0 : -1, most = by > 0 ? size : size - 1;
  const auto place = [&](const Value& given, int64_t otherwise) {
    return given.is_none() ? otherwise : std::clamp(place_in(given.integer(), size), least, most);
  };
  List chosen;
  const int64_t end = place(to, by > 0 ? size : -1);
  for (int64_t i = place(from, by > 0 ? 0 : size - 1); by > 0 ? i < end : i > end; i += by)
    chosen.push_back(items[static_cast<size_t>(i)]);
  return value.as<std::string>() ? Value::text(joined(Value::list(chosen), "")) : Value::list(chosen);
}

Dict known_functions() {
  return {{"range", Value::function(range_of)},
          {"namespace", Value::function([](const Arguments& a) { return Value::space(a.named); })},
          {"dict", Value::function([](const Arguments& a) { return Value::dict(a.named); })},
          {"raise_exception",
           Value::function([](const Arguments& a) -> Value { fail(argument(a, 0, "message", {}).shown()); })},
          {"strftime_now",
           Value::function([](const Arguments& a) { return Value::text(today(argument(a, 0, "format", {}).str())); })}};
}

}  // namespace onnx_train::chats
