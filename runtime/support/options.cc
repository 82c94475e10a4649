#include "runtime/support/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

template <typename... Args>
[[noreturn]] void refuse(const Args&... args) {
  throw UsageError(concat(args...), ErrorCode::kOptionValue);
}

// Returns "--output" for "-o,--output".
std::string label_of(const CommandOption& option) { return option.names.substr(option.names.rfind(',') + 1); }

// ---- Values

template <typename T>
std::string describe(const Range& range) {
  const std::string bound = number_text(range.least);
  std::string text = std::is_integral_v<T> ? "a whole number" : "a number";
  text += range.above ? " above " + bound : std::is_integral_v<T> ? " of at least " + bound : ", " + bound + " or more";
  if (std::isfinite(range.most)) text += " and at most " + number_text(range.most);
  return text;
}

// The model reads numbers as float32: a number that becomes infinite there, or zero without being zero, is not valid.
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
  // A sign or a fraction where none is allowed makes the number out of range, not a word.
  double real = 0;
  const bool is_number = std::from_chars(text.data(), end, real).ptr == end && !text.empty();
  if (!is_number) {
    refuse(label_of(option), ": '", text, "' is no number; take ", option.target.automatic ? "'auto' or " : "",
           describe<T>(range));
  }
  const auto size = static_cast<double>(value);
  bool allowed = parsed.ec == std::errc() && parsed.ptr == end && size <= range.most;
  allowed = allowed && (range.above ? size > range.least : size >= range.least);
  if constexpr (std::is_floating_point_v<T>) allowed = allowed && is_representable(value);
  if (!allowed) refuse(label_of(option), ": ", text, " is out of range; take ", describe<T>(range));
  return value;
}

std::string one_of(const std::vector<std::string>& choices) {
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
    refuse(label_of(option), ": there is no '", text, "'; take ", one_of(choices), did_you_mean(text, choices));
  }
  if (!option.target.check) return;
  try {
    option.target.check(text);
  } catch (const UsageError&) {
    throw;  // a whole message
  } catch (const std::exception& e) {
    refuse(label_of(option), " takes ", e.what(), ", not '", text, "'");
  }
}

struct Assign {
  const CommandOption& option;
  const std::string& text;

  void operator()(bool* target) const {
    const bool is_on = text.empty() || text == "true" || text == "on";
    if (!is_on && text != "false" && text != "off") refuse(label_of(option), " takes on or off, not '", text, "'");
    *target = is_on;
  }
  void operator()(std::string* target) const {
    check_text(option, text);
    *target = text;
  }
  void operator()(std::vector<std::string>* target) const {
    const bool whole = option.target.whole || is_positional(option);
    if (text.empty() || whole) check_text(option, text);
    if (whole) return target->push_back(text);
    std::istringstream pieces(text);
    for (std::string piece; std::getline(pieces, piece, ',');) {
      check_text(option, piece);
      target->push_back(piece);
    }
  }
  template <typename T>
  void operator()(std::optional<T>* target) const {
    bool* const automatic = option.target.automatic;
    const bool found = automatic && text == "auto";
    *target = found ? std::nullopt : std::optional<T>(parse_number<T>(option, text));
    if (automatic) *automatic = found;
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

CommandOption of_command(CommandOption option) {
  option.taken_by = TakenBy::kCommand;
  return option;
}

CommandOption of_library(CommandOption option) {
  option.taken_by = TakenBy::kLibrary;
  return option;
}

std::vector<CommandOption> taken_by(TakenBy who, std::vector<CommandOption> options) {
  std::erase_if(options, [=](const CommandOption& o) { return o.taken_by != TakenBy::kAll && o.taken_by != who; });
  return options;
}

std::vector<CommandOption> with_keys(std::vector<CommandOption> options, const std::vector<std::string>& keys) {
  std::erase_if(options, [&](const CommandOption& o) { return std::count(keys.begin(), keys.end(), key_of(o)) == 0; });
  return options;
}

std::vector<CommandOption> joined(std::vector<CommandOption> options, const std::vector<CommandOption>& more) {
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

namespace {

std::vector<CommandOption> inserted(const std::string& key, std::ptrdiff_t behind, std::vector<CommandOption> options,
                                    const std::vector<CommandOption>& more) {
  const auto found =
      std::find_if(options.begin(), options.end(), [&](const CommandOption& o) { return key_of(o) == key; });
  if (found == options.end()) fail("there is no option '", key, "'");
  options.insert(found + behind, more.begin(), more.end());
  return options;
}

}  // namespace

std::vector<CommandOption> inserted_before(const std::string& key, std::vector<CommandOption> options,
                                           const std::vector<CommandOption>& more) {
  return inserted(key, 0, std::move(options), more);
}

std::vector<CommandOption> inserted_after(const std::string& key, std::vector<CommandOption> options,
                                          const std::vector<CommandOption>& more) {
  return inserted(key, 1, std::move(options), more);
}

bool is_flag(const CommandOption& option) {
  return std::holds_alternative<bool*>(option.target.to) && option.value.empty();
}

std::string key_of(const CommandOption& option) {
  const std::string name = label_of(option);
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

void assign(const CommandOption& option, const std::string& text) {
  std::visit(Assign{option, text}, option.target.to);
}

std::optional<std::string> value_of(const CommandOption& option) {
  const auto value = std::visit([](const auto* stored) { return ValueOf()(stored); }, option.target.to);
  const bool is_automatic = option.target.automatic && *option.target.automatic;
  return !value && is_automatic ? std::optional<std::string>("auto") : value;
}

std::vector<std::string> values_of(const CommandOption& option) {
  if (option.target.whole) return *std::get<std::vector<std::string>*>(option.target.to);
  const std::optional<std::string> value = value_of(option);
  return value ? std::vector<std::string>{*value} : std::vector<std::string>();
}

size_t parse_bytes(const std::string& text) {
  if (text.empty()) return 0;
  static const std::map<std::string, double> kUnits = {
      {"", 1},         {"B", 1},        {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"KiB", 0x1p10},
      {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"k", 1e3},  {"M", 1e6},  {"G", 1e9},
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = kUnits.find(std::string(end, text.data() + text.size()));
  if (error != std::errc() || unit == kUnits.end() || !(number * unit->second >= 1) || number * unit->second > 0x1p60) {
    fail("a size such as 500MB or 2GiB");
  }
  return static_cast<size_t>(number * unit->second);
}

void check_bytes(const std::string& text) { parse_bytes(text); }

double parse_duration(const std::string& text) {
  if (text.empty()) return 0;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || factor == 0 || !(value > 0) || !std::isfinite(value * factor)) {
    fail("a duration such as 90s, 15m or 2h");
  }
  return value * factor;
}

void check_duration(const std::string& text) { parse_duration(text); }

TextCheck dynamic_or_count() {
  return [](const std::string& text) {
    int64_t number = 0;
    const CommandOption option{"--", {&number, kCount}, ""};
    if (text == "dynamic") return;
    try {
      assign(option, text);
    } catch (const UsageError&) {
      fail("'dynamic' or ", describe<int64_t>(kCount));
    }
  };
}

namespace {

bool has_suffix(const std::string& path, const std::string& suffix) {
  std::string found = std::filesystem::path(path).extension().string();
  std::transform(found.begin(), found.end(), found.begin(), [](unsigned char c) { return std::tolower(c); });
  return found.empty() || found == "." || found == suffix;
}

}  // namespace

void check_suffix(const std::string& path, const std::string& suffix) {
  if (!has_suffix(path, suffix)) refuse("a name that ends in ", suffix, " is needed, not '", path, "'");
}

TextCheck file_with(const std::string& suffix, const std::string& otherwise) {
  return [suffix, otherwise](const std::string& text) {
    if (!has_suffix(text, suffix)) {
      fail("a name that ends in ", suffix, otherwise.empty() ? "" : concat(" (", otherwise, ")"));
    }
  };
}

TextCheck file_with(const std::vector<std::string>& suffixes) {
  return [suffixes](const std::string& text) {
    const bool valid = std::any_of(suffixes.begin(), suffixes.end(),
                                   [&](const std::string& suffix) { return has_suffix(text, suffix); });
    if (!valid) fail("a name that ends in ", one_of(suffixes));
  };
}

void set_option(const std::vector<CommandOption>& options, const std::string& name, const std::string& text) {
  std::vector<std::string> known;
  for (const CommandOption& option : options) {
    if (key_of(option) == name) return assign(option, text);
    known.push_back(key_of(option));
  }
  throw UsageError(concat("there is no option '", name, "'", did_you_mean(name, known)), ErrorCode::kUnknownOption);
}

}  // namespace onnx_train
