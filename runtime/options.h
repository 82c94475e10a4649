// Options by name: where their values go, and which values are allowed. One table of them serves the command line, the
// options that a run keeps, and programs that call the library. Plain values; targets outlive their rows.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

// Arguments that make no sense, whatever the files hold: the command prints it and exits with 2.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(message, ErrorCode::kUsage) {}
};

// The numbers that an option takes. Infinity and NaN are never among them.
struct Range {
  double least = 0;
  bool above = false;  // more than `least`, which itself is not allowed
  double most = std::numeric_limits<double>::infinity();
};

constexpr Range kCount{1};           // of epochs, steps, samples: at least one
constexpr Range kPositive{0, true};  // a clipping norm, a tolerance

// Throws an exception whose message is what the option takes: "a size such as 500MB or 2GiB".
using TextCheck = std::function<void(const std::string&)>;

// Where a value goes, and which values are allowed: numbers of `range` (0 or more unless the row says otherwise), texts
// that are not empty and that `check` accepts. A bool is a flag; a list is given by commas or by repeating the option.
struct OptionTarget {
  using Pointer = std::variant<bool*, int64_t*, uint64_t*, double*, std::string*, std::optional<int64_t>*,
                               std::optional<double>*, std::vector<std::string>*>;

  template <typename T>
  OptionTarget(T* target) : to(target) {}
  template <typename T>
  OptionTarget(T* target, const Range& allowed) : to(target), range(allowed) {}
  template <typename T>
  OptionTarget(T* target, TextCheck allowed) : to(target), check(std::move(allowed)) {}

  Pointer to;
  Range range;
  TextCheck check;
};

struct CommandOption {
  std::string names;  // "--lr", "-o,--output"; without dashes: an argument by position
  OptionTarget target;
  std::string help;
  std::string value = "";  // what stands for the value in the help: "N", "FILE"
  bool required = false;
  std::vector<std::string> choices = {};
};

// The name in options.json and in messages: the last one, without dashes. "-o,--output" -> "output".
std::string key_of(const CommandOption& option);

// Puts `text` where the option's value goes. Throws UsageError, in one line, that names the option, the text and what
// the option takes.
void assign(const CommandOption& option, const std::string& text);

// The option's present value as assign() reads it; empty where there is none.
std::optional<std::string> value_of(const CommandOption& option);

// Checks of options that take a number or the word "dynamic".
TextCheck dynamic_or_count();
TextCheck dynamic_or_positive();

// Gives the option with the key `name` its value. Throws UsageError as assign does, or for a name that is none of
// `options`.
void set_option(const std::vector<CommandOption>& options, const std::string& name, const std::string& text);

}  // namespace onnx_train
