#include "tools/command.h"

#include <algorithm>
#include <exception>
#include <new>

#include "kernels/device.h"
#include "onnx_passes/io/base_files.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "onnx_train/version.h"
#include "platform/signals.h"
#include "platform/terminal.h"
#include "runtime/models/trial.h"
#include "tools/arguments.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

constexpr int kSuccess = 0, kFailure = 1, kUsage = 2;

int report(const std::string& message, int status) {
  print_error(concat("onnx-train: ", message));
  return status;
}

// The same with the error's code, "... [OT1001]", which `explain` takes. `more` follows the message.
int report(const Error& error, int status, const std::string& more = "") {
  const std::string code = error.code_text();
  return report(concat(error.what(), more, code.empty() ? "" : concat(" [", code, "]")), status);
}

int print_help(const std::string& text) {
  print(text);
  return kSuccess;
}

int run(Subcommand subcommand, const std::vector<std::string>& arguments) {
  const bool asks_for_help = arguments == std::vector<std::string>{"--help"};
  if (!subcommand.missing.empty() && !asks_for_help) return report(subcommand.missing, kUsage);
  std::string links, base;  // every subcommand loads a model
  const CommandOption option = links_option(&links);
  const auto is_links = [&](const CommandOption& own) { return own.names == option.names; };
  if (std::none_of(subcommand.options.begin(), subcommand.options.end(), is_links))
    subcommand.options.push_back(option);
  subcommand.options.push_back(base_option(&base));
  try {
    if (subcommand.runs_models && !asks_for_help && !can_run_models(default_device())) {
      return report(concat("this build has no ", subcommand.name,
                           ": it makes models and runs none, for it was made with ONNX_TRAIN_MODELS_ONLY"),
                    kUsage);
    }
    if (!read_arguments(subcommand, arguments)) return print_help(help_text(subcommand, text_width()));
  } catch (const UsageError& e) {
    return report(e, kUsage, concat(" (see onnx-train ", subcommand.name, " --help)"));
  } catch (const Error& e) {  // of a device that cannot be, or a file that --config names
    return report(e, kFailure);
  }
  allow_links_into(links);
  look_for_base_in(base);
  try {
    const int status = subcommand.run();
    flush_output();
    return status;
  } catch (const UsageError& e) {
    return report(e, kUsage);
  } catch (const Error& e) {
    return report(e, kFailure);
  } catch (const std::bad_alloc&) {
    return report(Error("out of memory", ErrorCode::kOutOfMemory), kFailure);
  } catch (const std::exception& e) {
    return report(e.what(), kFailure);
  }
}

int unknown_command(const std::string& name, const std::vector<Subcommand>& subcommands) {
  std::vector<std::string> names;
  for (const Subcommand& subcommand : subcommands) names.push_back(subcommand.name);
  const std::string message = concat("there is no command '", name, "'", did_you_mean(name, names));
  return report(UsageError(message, ErrorCode::kUnknownOption), kUsage, " (see onnx-train --help)");
}

// A command that runs models.
Subcommand running(Subcommand subcommand) {
  subcommand.runs_models = true;
  return subcommand;
}

}  // namespace

std::vector<Subcommand> all_subcommands() {
  return {check_command(),
          build_command(),
          import_ort_command(),
          running(fit_command()),
          running(sweep_command()),
          running(eval_command()),
          running(predict_command()),
          running(sample_command()),
          export_command(),
          flatten_command(),
          show_command(),
          running(opt_command()),
          running(grad_command()),
          running(verify_command()),
          running(bench_command()),
          running(compile_command()),
          running(scale_command()),
          devices_command(),
          ops_command(),
          report_command(),
          watch_command(),
          explain_command(),
          completion_command()};
}

int command(int argc, char** argv) {
  report_lost_pages();
  platform::ignore_file_limits();  // ulimit -f
  platform::prepare_standard_streams();
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (arguments.empty()) return report("give a command: check, build, fit, ... (see onnx-train --help)", kUsage);
  const std::string& name = arguments[0];
  if (name == "--version") return print_help(concat("onnx-train ", ONNX_TRAIN_VERSION, "\n"));
  const std::vector<Subcommand> subcommands = all_subcommands();
  if (name == "--help" || name == "-h") return print_help(help_text(subcommands, text_width()));
  for (const Subcommand& subcommand : subcommands) {
    if (subcommand.name == name) return run(subcommand, {arguments.begin() + 1, arguments.end()});
  }
  return unknown_command(name, subcommands);
}

}  // namespace onnx_train
