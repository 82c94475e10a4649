// Methods of texts and dictionaries, and what filters share with them.
#include <algorithm>
#include <map>

#include "onnx_passes/ir/error.h"
#include "runtime/data/chats/template_calls.h"
#include "runtime/data/chats/template_texts.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train::chats {
Value argument(const Arguments& arguments, size_t place, std::string_view name, Value otherwise) {
  const Value* found = arguments.find(place, name);
  return found ? *found : std::move(otherwise);
}

Value number(int64_t n) { return Value(Value::Data(n)); }

Value boolean(bool b) { return Value(Value::Data(b)); }

std::string stripped(std::string_view text, const Value& characters, bool left, bool right) {
  const bool blanks = characters.is_none();
  const auto goes = [&](const Character& c, std::string_view at) {
    return blanks ? is_space(c.code) : characters.str().find(at.substr(0, c.bytes)) != std::string::npos;
  };
  while (left && !text.empty() && goes(first_character(text), text)) text.remove_prefix(first_character(text).bytes);
  while (right && !text.empty()) {
    const Character last = last_character(text);
    if (!goes(last, text.substr(text.size() - last.bytes))) break;
    text.remove_suffix(last.bytes);
  }
  return std::string(text);
}

std::string capitalized(const std::string& text, bool (*begins_word)(char32_t)) {
  std::string made;
  bool is_first = true;
  for_each_character(text, [&](char32_t code, size_t) {
    std::string character;
    append(&character, code);
    made += is_first ? uppercase(character) : lowercase(character);
    is_first = begins_word(code);
  });
  return made;
}

std::string replaced(std::string text, const std::string& from, const std::string& to, int64_t most) {
  if (from.empty()) fail("replace: the text to replace is empty");
  for (size_t at = 0; most != 0 && (at = text.find(from, at)) != std::string::npos; at += to.size(), --most) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string joined(const Value& items, const std::string& between) {
  std::string text;
  bool is_first = true;
  for (const Value& item : items.items()) {
    text += concat(is_first ? "" : between, item.shown());
    is_first = false;
  }
  return text;
}

Value pairs_of(const Dict& dict) {
  List pairs;
  for (const auto& [key, item] : dict) pairs.push_back(Value::list({Value::text(key), item}));
  return Value::list(pairs);
}

namespace {

Value split(const std::string& text, const Value& separator, int64_t most) {
  List parts;
  if (separator.is_none()) {  // at blanks
    std::string_view rest = text;
    for (;;) {
      while (!rest.empty() && is_space(first_character(rest).code)) rest.remove_prefix(first_character(rest).bytes);
      if (rest.empty()) return Value::list(parts);
      size_t end = most-- == 0 ? rest.size() : 0;
      while (end < rest.size() && !is_space(first_character(rest.substr(end)).code))
        end += first_character(rest.substr(end)).bytes;
      parts.push_back(Value::text(std::string(rest.substr(0, end))));
      rest.remove_prefix(end);
    }
  }
  const std::string& at = separator.str();
  if (at.empty()) fail("split: the separator is empty");
  size_t begin = 0;
  for (size_t found = 0; most-- != 0 && (found = text.find(at, begin)) != std::string::npos;
       begin = found + at.size()) {
    parts.push_back(Value::text(text.substr(begin, found - begin)));
  }
  parts.push_back(Value::text(text.substr(begin)));
  return Value::list(parts);
}

bool starts_or_ends(const std::string& text, const Value& with, bool starts) {
  const List options = with.as_list() ? *with.as_list() : List{with};
  return std::ranges::any_of(options, [&](const Value& option) {
    return starts ? text.starts_with(option.str()) : text.ends_with(option.str());
  });
}

using Method = Value (*)(const Value&, const Arguments&);

const std::map<std::string, Method>& text_methods() {
  static const std::map<std::string, Method> methods = {
      {"strip",
       [](const Value& v, const Arguments& a) {
         return Value::text(stripped(v.str(), argument(a, 0, "chars", {}), true, true));
       }},
      {"lstrip",
       [](const Value& v, const Arguments& a) {
         return Value::text(stripped(v.str(), argument(a, 0, "chars", {}), true, false));
       }},
      {"rstrip",
       [](const Value& v, const Arguments& a) {
         return Value::text(stripped(v.str(), argument(a, 0, "chars", {}), false, true));
       }},
      {"upper", [](const Value& v, const Arguments&) { return Value::text(uppercase(v.str())); }},
      {"lower", [](const Value& v, const Arguments&) { return Value::text(lowercase(v.str())); }},
      {"title",
       [](const Value& v, const Arguments&) {
         return Value::text(capitalized(v.str(), [](char32_t code) { return !is_word(code) || is_numeric(code); }));
       }},
      {"capitalize",
       [](const Value& v, const Arguments&) {
         return Value::text(capitalized(v.str(), [](char32_t) { return false; }));
       }},
      {"startswith", [](const Value& v,
                        const Arguments& a) { return boolean(starts_or_ends(v.str(), argument(a, 0, "", {}), true)); }},
      {"endswith", [](const Value& v,
                      const Arguments& a) { return boolean(starts_or_ends(v.str(), argument(a, 0, "", {}), false)); }},
      {"split",
       [](const Value& v, const Arguments& a) {
         return split(v.str(), argument(a, 0, "sep", {}), argument(a, 1, "maxsplit", number(-1)).integer());
       }},
      {"replace",
       [](const Value& v, const Arguments& a) {
         return Value::text(replaced(v.str(), argument(a, 0, "old", {}).str(), argument(a, 1, "new", {}).str(),
                                     argument(a, 2, "count", number(-1)).integer()));
       }},
      {"join", [](const Value& v, const Arguments& a) { return Value::text(joined(argument(a, 0, "", {}), v.str())); }},
      {"find",
       [](const Value& v, const Arguments& a) {
         const size_t at = v.str().find(argument(a, 0, "", {}).str());
         if (at == std::string::npos) return number(-1);
         return number(std::ssize(Value::text(v.str().substr(0, at)).items()));
       }},
  };
  return methods;
}

const std::map<std::string, Method>& dict_methods() {
  static const std::map<std::string, Method> methods = {
      {"items", [](const Value& v, const Arguments&) { return pairs_of(*v.as_dict()); }},
      {"keys", [](const Value& v, const Arguments&) { return Value::list(v.items()); }},
      {"values",
       [](const Value& v, const Arguments&) {
         List values;
         for (const auto& [key, item] : *v.as_dict()) values.push_back(item);
         return Value::list(values);
       }},
      {"get",
       [](const Value& v, const Arguments& a) {
         const Value* found = find(*v.as_dict(), argument(a, 0, "key", {}).str());
         return found ? *found : argument(a, 1, "default", {});
       }},
  };
  return methods;
}

}  // namespace

Value attribute(const Value& value, const std::string& name) {
  if (const auto* undefined = value.as<Undefined>())
    fail("'", undefined->name, "' is undefined, and has no '", name, "'");
  if (value.as_dict()) {
    if (const Value* item = find(*value.as_dict(), name)) return *item;
  }
  const std::map<std::string, Method> none;
  const auto& methods = value.as<std::string>() ? text_methods() : value.as_dict() ? dict_methods() : none;
  const auto method = methods.find(name);
  if (method == methods.end()) return Value(Value::Data(Undefined{name}));
  return Value::function([value, call = method->second](const Arguments& arguments) { return call(value, arguments); });
}

}  // namespace onnx_train::chats
