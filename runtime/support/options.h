// Options by name: where their values are stored and which values are valid. One table serves the command line, the
// options stored with a run, and programs that call the library. Plain values; the targets must outlive the rows. Any
// thread.
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

// Arguments that are wrong for any contents of the files. The command prints the message and exits with 2. `code` is of
// the kind kUsage.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message, ErrorCode code = ErrorCode::kUsage) : Error(message, code) {}
};

// The valid numbers of an option. Infinity and NaN are never valid.
struct Range {
  double least = 0;
  bool above = false;  // `least` itself is not valid
  double most = std::numeric_limits<double>::infinity();
};

constexpr Range kCount{1};           // of epochs, steps, samples: at least one
constexpr Range kPositive{0, true};  // a clipping norm, a tolerance

// Throws an exception whose message describes the valid values: "a size such as 500MB or 2GiB". A UsageError is a whole
// message.
using TextCheck = std::function<void(const std::string&)>;

// Where a value is stored, and which values are valid: numbers in `range` (by default 0 or more), non-empty texts that
// `check` accepts. A bool without a placeholder is a flag, one with a placeholder is on or off; a list is separated by
// commas or given by repeating the option, or by repeating it alone if the texts may hold commas (`whole`). A list of
// positional arguments is one text each.
struct OptionTarget {
  using Pointer = std::variant<bool*, int64_t*, uint64_t*, double*, std::string*, std::optional<int64_t>*,
                               std::optional<double>*, std::vector<std::string>*>;

  template <typename T>
  OptionTarget(T* target) : to(target) {}
  template <typename T>
  OptionTarget(T* target, const Range& allowed) : to(target), range(allowed) {}
  template <typename T>
  OptionTarget(T* target, TextCheck allowed) : to(target), check(std::move(allowed)) {}

  // Takes the word "auto", too, which sets *flag and leaves a number of type std::optional empty. A number clears it.
  OptionTarget or_auto(bool* flag) && {
    automatic = flag;
    return std::move(*this);
  }

  Pointer to;
  Range range;
  TextCheck check;
  bool whole = false;
  bool* automatic = nullptr;
};

using Words = std::vector<std::string>;

// Who takes an option. The library's are C, C++ and Python.
enum class TakenBy { kAll, kCommand, kLibrary };

struct CommandOption {
  std::string names;  // "--lr", "-o,--output"; without dashes: a positional argument
  OptionTarget target;
  std::string help;
  std::string value = "";  // placeholder for the value in the help: "N", "FILE"
  bool required = false;
  Words choices = {};
  // Without choices: words that a value may be or begin with, which shells complete.
  Words (*words)() = nullptr;
  TakenBy taken_by = TakenBy::kAll;
};

// The option, of the command alone, or of the library alone.
CommandOption of_command(CommandOption option);
CommandOption of_library(CommandOption option);
// Those that the command, or the library, takes.
std::vector<CommandOption> taken_by(TakenBy who, std::vector<CommandOption> options);
// Those of these keys, in their order.
std::vector<CommandOption> with_keys(std::vector<CommandOption> options, const std::vector<std::string>& keys);
// One table after the other.
std::vector<CommandOption> joined(std::vector<CommandOption> options, const std::vector<CommandOption>& more);
// Inserts `more` before, or behind, the option with the key `key`.
std::vector<CommandOption> inserted_before(const std::string& key, std::vector<CommandOption> options,
                                           const std::vector<CommandOption>& more);
std::vector<CommandOption> inserted_after(const std::string& key, std::vector<CommandOption> options,
                                          const std::vector<CommandOption>& more);

inline bool is_positional(const CommandOption& option) { return option.names[0] != '-'; }
// Given by its name alone.
bool is_flag(const CommandOption& option);

// The name in options.json and in messages: the last one, without dashes. "-o,--output" -> "output".
std::string key_of(const CommandOption& option);

// Parses `text` and stores the option's value. Throws UsageError with one line that names the option, the text and the
// valid values.
void assign(const CommandOption& option, const std::string& text);

// The option's current value in the form that assign() reads; empty if there is none.
std::optional<std::string> value_of(const CommandOption& option);

// The values to give the option one by one: the texts of a list whose texts may hold commas, else the one value.
std::vector<std::string> values_of(const CommandOption& option);

// The check of an option that takes a count or the word "dynamic".
TextCheck dynamic_or_count();

// Returns the bytes of "500MB", "1.5GiB" or "4096"; 0 for "". Throws Error that says what is valid, as a TextCheck
// does.
size_t parse_bytes(const std::string& text);
void check_bytes(const std::string& text);
// The same for the seconds of "90", "90s", "15m" or "2h".
double parse_duration(const std::string& text);
void check_duration(const std::string& text);

// Throws UsageError for a file name with another suffix than `suffix` (".onnx"), in whatever case: nothing else would
// be written. A name without any suffix says nothing of its contents and is valid.
void check_suffix(const std::string& path, const std::string& suffix);
// The same as a check of an option. `otherwise`: what writes other formats; may be empty.
TextCheck file_with(const std::string& suffix, const std::string& otherwise = "");
TextCheck file_with(const std::vector<std::string>& suffixes);  // one of these

// Sets the option with the key `name`. Throws UsageError like assign(), or if `options` has no such name.
void set_option(const std::vector<CommandOption>& options, const std::string& name, const std::string& text);

}  // namespace onnx_train
