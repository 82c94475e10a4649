#include "tools/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes/expression.h"

namespace onnx_train {
namespace {

template <typename... Args>
[[noreturn]] void refuse(const Args&... args) {
  throw UsageError(concat(args...));
}

// "--lr" or "-o,--output", the names; "MODEL", which has no dash, is an argument by position.
std::vector<std::string> names_of(const CommandOption& option) {
  std::vector<std::string> names;
  std::istringstream text(option.names);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

bool is_positional(const CommandOption& option) { return option.names[0] != '-'; }
bool is_flag(const CommandOption& option) { return std::holds_alternative<bool*>(option.target.to); }
bool is_list(const CommandOption& option) {
  return std::holds_alternative<std::vector<std::string>*>(option.target.to);
}

std::string label_of(const CommandOption& option) { return names_of(option).back(); }

// ---- Values

template <typename T>
std::string describe(const Range& range) {
  const std::string bound = number_text(range.least);
  std::string text = std::is_integral_v<T> ? "a whole number" : "a number";
  text += range.above ? " above " + bound : std::is_integral_v<T> ? " of at least " + bound : ", " + bound + " or more";
  if (std::isfinite(range.most)) text += " and at most " + number_text(range.most);
  return text;
}

// Numbers become float32 on their way to the model: one that is infinite there, or zero without being it, is none.
bool is_representable(double value) {
  const auto narrow = static_cast<float>(value);
  return std::isfinite(narrow) && (value == 0 || narrow != 0);
}

template <typename T>
T parse_number(const CommandOption& option, const std::string& text) {
  const Range& range = option.target.range;
  T value{};
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  // A number may have a sign and a fraction where none is allowed: that is out of range, not a word.
  double real = 0;
  const bool is_number = std::from_chars(text.data(), end, real).ptr == end && !text.empty();
  if (!is_number) refuse(label_of(option), ": '", text, "' is no number; take ", describe<T>(range));
  const auto size = static_cast<double>(value);
  bool allowed = parsed.ec == std::errc() && parsed.ptr == end && size <= range.most;
  allowed = allowed && (range.above ? size > range.least : size >= range.least);
  if constexpr (std::is_floating_point_v<T>) allowed = allowed && is_representable(value);
  if (!allowed) refuse(label_of(option), ": ", text, " is out of range; take ", describe<T>(range));
  return value;
}

std::string list_of(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ", choices[i]);
  }
  return text;
}

void check_text(const CommandOption& option, const std::string& text) {
  if (text.empty()) refuse(label_of(option), " takes ", option.value.empty() ? "a value" : option.value, ", not ''");
  const auto& choices = option.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    refuse(label_of(option), ": there is no '", text, "'; take ", list_of(choices), did_you_mean(text, choices));
  }
  if (!option.target.check) return;
  try {
    option.target.check(text);
  } catch (const std::exception& e) {
    refuse(label_of(option), " takes ", e.what(), ", not '", text, "'");
  }
}

// ---- Arguments

// The arguments of one subcommand, read from left to right.
class Reader {
 public:
  Reader(const Subcommand& subcommand, const std::vector<std::string>& arguments)
      : subcommand_(subcommand), arguments_(arguments) {
    for (const CommandOption& option : subcommand.options) {
      if (is_positional(option)) {
        positional_.push_back(&option);
      } else {
        for (const std::string& name : names_of(option)) by_name_[name] = &option;
      }
    }
  }

  bool run() {
    const auto wants_help = [](const std::string& text) { return text == "--help" || text == "-h"; };
    if (std::any_of(arguments_.begin(), arguments_.end(), wants_help)) return false;
    bool only_positional = false;
    while (at_ < arguments_.size()) {
      const std::string& text = arguments_[at_++];
      if (only_positional || text.size() < 2 || text[0] != '-') {
        read_positional(text);
      } else if (text == "--") {
        only_positional = true;
      } else {
        read_option(text);
      }
    }
    check_required();
    return true;
  }

 private:
  void read_positional(const std::string& text) {
    if (next_positional_ == positional_.size()) {
      refuse(subcommand_.name, " takes ", list_of_positional(), "; what is '", text, "'?");
    }
    take(*positional_[next_positional_++], text);
  }

  std::string list_of_positional() const {
    std::string names;
    for (const CommandOption* option : positional_)
      names += concat(names.empty() ? "one " : " and one ", option->names);
    return names;
  }

  // `--name`, `--name=value`, `-n`, `-nvalue`
  void read_option(const std::string& text) {
    const bool is_long = text[1] == '-';
    const size_t length = is_long ? std::min(text.find('='), text.size()) : 2;
    const std::string name = text.substr(0, length);
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) refuse_unknown(is_long ? name : text);
    const CommandOption& option = *found->second;
    const bool attached = length < text.size();
    if (is_flag(option)) {
      if (attached) refuse(name, " takes no value");
      return take(option, "");
    }
    if (attached) return take(option, text.substr(length + (text[length] == '=' ? 1 : 0)));
    if (at_ == arguments_.size() || by_name_.count(arguments_[at_])) refuse(name, " needs a value: ", option.value);
    take(option, arguments_[at_++]);
  }

  [[noreturn]] void refuse_unknown(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& [known, option] : by_name_) names.push_back(known);
    refuse(subcommand_.name, " has no option '", name, "'", did_you_mean(name, names));
  }

  void take(const CommandOption& option, const std::string& text) {
    const std::string key = key_of(option);
    if (!given_.insert(key).second && !is_list(option)) refuse(label_of(option), " is given twice");
    assign(option, text);
    if (subcommand_.given) subcommand_.given->insert(key);
  }

  void check_required() const {
    for (const CommandOption& option : subcommand_.options) {
      if (!option.required || given_.count(key_of(option))) continue;
      refuse(subcommand_.name, " needs ", label_of(option), is_positional(option) ? "" : " " + option.value, ": ",
             option.help);
    }
  }

  const Subcommand& subcommand_;
  const std::vector<std::string>& arguments_;
  std::map<std::string, const CommandOption*> by_name_;
  std::vector<const CommandOption*> positional_;
  std::set<std::string> given_;
  size_t at_ = 0, next_positional_ = 0;
};

struct Assign {
  const CommandOption& option;
  const std::string& text;

  void operator()(bool* target) const { *target = text.empty() || text == "true"; }
  void operator()(std::string* target) const {
    check_text(option, text);
    *target = text;
  }
  void operator()(std::vector<std::string>* target) const {
    if (text.empty()) check_text(option, text);
    std::istringstream pieces(text);
    for (std::string piece; std::getline(pieces, piece, ',');) {
      check_text(option, piece);
      target->push_back(piece);
    }
  }
  template <typename T>
  void operator()(std::optional<T>* target) const {
    *target = parse_number<T>(option, text);
  }
  template <typename T>
  void operator()(T* target) const {
    *target = parse_number<T>(option, text);
  }
};

struct ValueOf {
  using Result = std::optional<std::string>;

  Result operator()(const bool* value) const { return *value ? "true" : "false"; }
  Result operator()(const std::string* value) const { return value->empty() ? Result() : *value; }
  Result operator()(const std::vector<std::string>* value) const {
    std::string text;
    for (const std::string& piece : *value) text += concat(text.empty() ? "" : ",", piece);
    return value->empty() ? Result() : text;
  }
  Result operator()(const double* value) const { return number_text(*value); }
  template <typename T>
  Result operator()(const std::optional<T>* value) const {
    return *value ? (*this)(&**value) : Result();
  }
  template <typename T>
  Result operator()(const T* value) const {
    return std::to_string(*value);
  }
};

}  // namespace

std::string key_of(const CommandOption& option) {
  const std::string name = label_of(option);
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

void assign(const CommandOption& option, const std::string& text) {
  std::visit(Assign{option, text}, option.target.to);
}

std::optional<std::string> value_of(const CommandOption& option) {
  return std::visit([](const auto* value) { return ValueOf()(value); }, option.target.to);
}

namespace {

template <typename T>
TextCheck dynamic_or(const Range& range) {
  return [range](const std::string& text) {
    T number{};
    const CommandOption option{"--", {&number, range}, ""};
    if (text == "dynamic") return;
    try {
      assign(option, text);
    } catch (const UsageError&) {
      fail("'dynamic' or ", describe<T>(range));
    }
  };
}

}  // namespace

TextCheck dynamic_or_count() { return dynamic_or<int64_t>(kCount); }
TextCheck dynamic_or_positive() { return dynamic_or<double>(kPositive); }

bool read_arguments(const Subcommand& subcommand, const std::vector<std::string>& arguments) {
  return Reader(subcommand, arguments).run();
}

}  // namespace onnx_train
