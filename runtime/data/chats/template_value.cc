#include "runtime/data/chats/template_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train::chats {
namespace {

// Python's repr of a float: the shortest digits that give it back.
std::string float_text(double number) {
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  std::string text(digits.data(), end);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string shown(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') shown += '\\';
    if (c == '\n')
      shown += "\\n";
    else if (c == '\t')
      shown += "\\t";
    else if (c == '\r')
      shown += "\\r";
    else
      shown += c;
  }
  return shown + quote;
}

// Of a list or dictionary with these values.
Extent around(const Extent& a, const Value& item) {
  constexpr int64_t kDeepest = 64, kMost = 1 << 20;
  const Extent b = item.extent();
  const Extent both = {std::max(a.depth, b.depth + 1), a.values + b.values};
  if (both.depth > kDeepest) fail("values in values are deeper than ", kDeepest);
  if (both.values > kMost) fail("a value holds more than ", kMost, " others");
  return both;
}

template <typename T>
const T* pointer(const std::shared_ptr<T>* shared) {
  return shared ? shared->get() : nullptr;
}

}  // namespace

Value Value::text(std::string text) {
  constexpr size_t kMost = size_t{1} << 26;
  if (text.size() > kMost) fail("a text has more than ", kMost, " bytes");
  return Value(Data(std::move(text)));
}

Value Value::list(List items) {
  Extent extent;
  for (const Value& item : items) extent = around(extent, item);
  return Value(Data(std::make_shared<const Held<List>>(Held<List>{std::move(items), extent})));
}

Value Value::dict(Dict items) {
  Extent extent;
  for (const auto& [key, item] : items) extent = around(extent, item);
  return Value(Data(std::make_shared<const Held<Dict>>(Held<Dict>{std::move(items), extent})));
}

const List* Value::as_list() const {
  const auto* held = pointer(as<std::shared_ptr<const Held<List>>>());
  return held ? &held->items : nullptr;
}

const Dict* Value::as_dict() const {
  if (const Namespace* space = as_namespace()) return &space->fields;
  const auto* held = pointer(as<std::shared_ptr<const Held<Dict>>>());
  return held ? &held->items : nullptr;
}

Namespace* Value::as_namespace() const {
  const auto* shared = as<std::shared_ptr<Namespace>>();
  return shared ? shared->get() : nullptr;
}

Extent Value::extent() const {
  if (as_namespace()) fail("a namespace is a part of no other value");
  if (const auto* held = pointer(as<std::shared_ptr<const Held<List>>>())) return held->extent;
  if (const auto* held = pointer(as<std::shared_ptr<const Held<Dict>>>())) return held->extent;
  return {};
}

Value Value::of(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return Value(Data(json.get<bool>()));
  if (json.is_number_integer()) return Value(Data(json.get<int64_t>()));
  if (json.is_number()) return Value(Data(json.get<double>()));
  if (json.is_string()) return text(json.get<std::string>());
  if (json.is_array()) {
    List items;
    for (const auto& item : json) items.push_back(of(item));
    return list(std::move(items));
  }
  if (!json.is_object()) return {};
  Dict items;
  for (const auto& [key, item] : json.items()) items.emplace_back(key, of(item));
  return dict(std::move(items));
}

bool Value::truth() const {
  if (const auto* b = as<bool>()) return *b;
  if (is_number()) return number() != 0;
  if (const auto* text = as<std::string>()) return !text->empty();
  if (as_list()) return !as_list()->empty();
  if (as_dict()) return !as_dict()->empty();
  return as<std::shared_ptr<Function>>() != nullptr;
}

double Value::number() const {
  if (const auto* i = as<int64_t>()) return static_cast<double>(*i);
  if (const auto* b = as<bool>()) return *b ? 1 : 0;
  if (const auto* d = as<double>()) return *d;
  fail("a number is expected, not ", type());
}

int64_t Value::integer() const {
  if (const auto* i = as<int64_t>()) return *i;
  if (const auto* b = as<bool>()) return *b ? 1 : 0;
  fail("a whole number is expected, not ", type());
}

const std::string& Value::str() const {
  if (const auto* text = as<std::string>()) return *text;
  if (const auto* undefined = as<Undefined>()) fail("'", undefined->name, "' is undefined");
  fail("a text is expected, not ", type());
}

const char* Value::type() const {
  constexpr std::array<const char*, 10> kTypes = {"undefined", "None", "bool", "int",      "float",
                                                  "str",       "list", "dict", "function", "namespace"};
  return kTypes[data_.index()];
}

std::string Value::shown() const {
  if (is_undefined()) return "";
  return as<std::string>() ? str() : repr();
}

std::string Value::repr() const {
  if (is_none() || is_undefined()) return "None";
  if (const auto* b = as<bool>()) return *b ? "True" : "False";
  if (const auto* i = as<int64_t>()) return std::to_string(*i);
  if (const auto* d = as<double>()) return float_text(*d);
  if (as<std::string>()) return quoted(str());
  std::string text;
  if (const List* items = as_list()) {
    for (const Value& item : *items) text += concat(text.empty() ? "" : ", ", item.repr());
    return concat("[", text, "]");
  }
  if (const Dict* items = as_dict()) {
    for (const auto& [key, item] : *items) text += concat(text.empty() ? "" : ", ", quoted(key), ": ", item.repr());
    return concat("{", text, "}");
  }
  return "<function>";
}

List Value::items() const {
  if (is_undefined()) return {};
  if (as_list()) return *as_list();
  List items;
  if (const Dict* dict = as_dict()) {
    for (const auto& [key, item] : *dict) items.push_back(text(key));
    return items;
  }
  if (!as<std::string>()) fail("a loop goes over a list, not over ", type());
  for_each_character(str(), [&](char32_t code, size_t) {
    std::string character;
    append(&character, code);
    items.push_back(text(character));
  });
  return items;
}

std::string Value::json(int64_t indent, int64_t depth) const {
  if (is_undefined()) fail("an undefined value is no JSON");
  if (is_none()) return "null";
  if (const auto* b = as<bool>()) return *b ? "true" : "false";
  if (as<std::string>()) return nlohmann::json(str()).dump();
  if (!as_list() && !as_dict()) return repr();
  const std::string line = indent < 0 ? "" : "\n" + std::string(static_cast<size_t>(indent * (depth + 1)), ' ');
  const std::string last = indent < 0 ? "" : "\n" + std::string(static_cast<size_t>(indent * depth), ' ');
  std::string text;
  const auto add = [&](const std::string& item) {
    text += concat(text.empty() ? "" : indent < 0 ? ", " : ",", line, item);
  };
  if (const List* items = as_list()) {
    for (const Value& item : *items) add(item.json(indent, depth + 1));
    return concat("[", text, items->empty() ? "" : last, "]");
  }
  for (const auto& [key, item] : *as_dict())
    add(concat(nlohmann::json(key).dump(), ": ", item.json(indent, depth + 1)));
  return concat("{", text, as_dict()->empty() ? "" : last, "}");
}

const Value* Arguments::find(size_t place, std::string_view name) const {
  if (place < values.size()) return &values[place];
  return chats::find(named, name);
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.as<std::string>() && b.as<std::string>()) return a.str() == b.str();
  if (a.as_list() && b.as_list()) {
    return std::equal(a.as_list()->begin(), a.as_list()->end(), b.as_list()->begin(), b.as_list()->end(), equal);
  }
  if (a.as_dict() && b.as_dict()) {
    return a.as_dict()->size() == b.as_dict()->size() && std::ranges::all_of(*a.as_dict(), [&](const auto& item) {
             const Value* other = find(*b.as_dict(), item.first);
             return other && equal(item.second, *other);
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  return a.str() < b.str();
}

bool contains(const Value& in, const Value& what) {
  if (in.as<std::string>()) return in.str().find(what.str()) != std::string::npos;
  if (in.as_dict()) return what.as<std::string>() && find(*in.as_dict(), what.str());
  if (in.is_undefined()) return false;
  return std::ranges::any_of(in.items(), [&](const Value& item) { return equal(item, what); });
}

const Value* find(const Dict& dict, std::string_view key) {
  const auto found = std::ranges::find_if(dict, [&](const auto& item) { return item.first == key; });
  return found == dict.end() ? nullptr : &found->second;
}

void put(Dict* dict, const std::string& key, Value value) {
  const auto found = std::ranges::find_if(*dict, [&](const auto& item) { return item.first == key; });
  if (found == dict->end())
    dict->emplace_back(key, std::move(value));
  else
    found->second = std::move(value);
}

}  // namespace onnx_train::chats
