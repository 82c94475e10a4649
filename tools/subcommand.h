// How a subcommand describes itself: options, where their values go and which are allowed, what to run. arguments.h
// reads a command line by that, help.h prints it, and a run folder keeps it as resolved options. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace onnx_train {

// The numbers that an option takes. Infinity and NaN are never among them.
struct Range {
  double least = 0;
  bool above = false;  // more than `least`, which itself is not allowed
  double most = std::numeric_limits<double>::infinity();
};
constexpr const char* kVersion = "0.1.0";

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

struct Subcommand {
  std::string name;
  std::string summary;   // one line
  std::string examples;  // lines of the help's end
  std::vector<CommandOption> options;
  std::function<int()> run;                        // returns the exit status; throws Error
  std::shared_ptr<std::set<std::string>> given{};  // if set: receives the keys of the options that were given
};

// One file each. The order is that of the help.
Subcommand check_command();
Subcommand build_command();
Subcommand fit_command();
Subcommand eval_command();
Subcommand predict_command();
Subcommand export_command();
Subcommand flatten_command();
Subcommand show_command();
Subcommand grad_command();
Subcommand verify_command();
Subcommand bench_command();
std::vector<Subcommand> all_subcommands();

// Arguments that make no sense, whatever the files hold: the command prints it and exits with 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace onnx_train
