// How a subcommand describes itself: options, where their values go, what to run. command.cc turns that into an
// argument parser, so that only one file knows which one, and into the resolved options that a run folder keeps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace onnx_train {

// Where a value goes; a bool is a flag.
using OptionTarget = std::variant<bool*, int64_t*, uint64_t*, double*, std::string*, std::optional<int64_t>*,
                                  std::optional<double>*, std::vector<std::string>*>;

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
  std::function<int()> run;  // returns the exit status; throws Error
};

// The long options and arguments with their present values, as a JSON object.
std::string options_to_json(const std::vector<CommandOption>& options);

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

// A combination of arguments that makes no sense: the command prints it and exits with 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace onnx_train
