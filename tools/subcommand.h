// How a subcommand describes itself: its options (runtime/support/options.h) and what to run. arguments.h
// reads a command line by that, help.h prints it, and a run folder keeps it as resolved options. Plain values.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/support/options.h"

namespace onnx_train {

struct Subcommand {
  std::string name;
  std::string summary;   // one line
  std::string examples;  // lines of the help's end
  std::vector<CommandOption> options;
  std::function<int()> run;                        // returns the exit status; throws Error
  std::shared_ptr<std::set<std::string>> given{};  // if set: receives the keys of the options that were given
  std::string missing{};     // of a command that this build does not have: the message, the same for all arguments
  bool runs_models = false;  // which a build without kernels cannot do
};

// One file each. The order is that of the help.
Subcommand check_command();
Subcommand build_command();
Subcommand import_ort_command();
Subcommand fit_command();
Subcommand sweep_command();
Subcommand eval_command();
Subcommand predict_command();
Subcommand sample_command();
Subcommand export_command();
Subcommand flatten_command();
Subcommand show_command();
Subcommand opt_command();
Subcommand grad_command();
Subcommand verify_command();
Subcommand bench_command();
Subcommand compile_command();
Subcommand scale_command();
Subcommand devices_command();
Subcommand ops_command();
Subcommand report_command();
Subcommand watch_command();
Subcommand explain_command();
Subcommand completion_command();
std::vector<Subcommand> all_subcommands();

}  // namespace onnx_train
