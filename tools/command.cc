#include "tools/command.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/loading.h"
#include "tools/interrupt.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

constexpr int kSuccess = 0, kFailure = 1, kUsage = 2;

constexpr const char* kAbout =
    "Trains ONNX models without a training framework: build a training model from a forward model, run it, export.";

constexpr const char* kTour =
    "Examples:\n"
    "  onnx-train check model.onnx\n"
    "  onnx-train build model.onnx -o train.onnx --loss cross_entropy --optimizer 'adamw(weight_decay=0.01)'\n"
    "  onnx-train fit train.onnx --data train.npz --eval-data test.npz --epochs 10 --batch-size 64 --lr 1e-3 --out "
    "run\n"
    "  onnx-train export run/best.onnx -o trained.onnx\n"
    "  onnx-train predict trained.onnx --inputs test.npz -o outputs.npz\n"
    "\nonnx-train COMMAND --help says more.";

// Whole numbers that 64 bits do not hold: the parser would take the nearest that they do.
template <typename T>
std::string expect_64_bits(const std::string& text) {
  errno = 0;
  std::is_unsigned_v<T> ? static_cast<void>(std::strtoull(text.c_str(), nullptr, 0))
                        : static_cast<void>(std::strtoll(text.c_str(), nullptr, 0));
  return errno == ERANGE ? text + " is out of range" : "";
}

void add_option(CLI::App* app, const CommandOption& option) {
  CLI::Option* added = std::visit(
      [&](auto* target) -> CLI::Option* {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
          return app->add_flag(option.names, *target, option.help);
        } else {
          // The defaults are in the help texts where they matter; an empty list or string is none.
          CLI::Option* value = app->add_option(option.names, *target, option.help);
          if constexpr (std::is_same_v<T, uint64_t>) value->check(expect_64_bits<uint64_t>);
          if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, std::optional<int64_t>>) {
            value->check(expect_64_bits<int64_t>);
          }
          return value;
        }
      },
      option.target);
  if (!std::holds_alternative<bool*>(option.target)) added->type_name(option.value);
  if (option.required) added->required();
  if (!option.choices.empty()) added->check(CLI::IsMember(option.choices));
  if (std::holds_alternative<std::vector<std::string>*>(option.target)) {
    added->expected(1)->take_all()->delimiter(',');
  }
}

// Every subcommand loads a model.
void add_links_option(CLI::App* app, std::string* folder) {
  app->add_option("--allow-links", *folder, "the model's data files may be links that lead into this folder")
      ->type_name("DIR");
}

void add_subcommand(CLI::App* app, const Subcommand& subcommand, std::string* links) {
  CLI::App* sub = app->add_subcommand(subcommand.name, subcommand.summary);
  sub->footer("Examples:\n" + subcommand.examples);
  for (const CommandOption& option : subcommand.options) add_option(sub, option);
  add_links_option(sub, links);
}

// Errors are one line, whatever they are made from.
int report(const std::string& message, int status) {
  std::string line = message;
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  std::fprintf(stderr, "onnx-train: %s\n", line.c_str());
  return status;
}

int run(const Subcommand& subcommand) {
  try {
    return subcommand.run();
  } catch (const UsageError& e) {
    return report(e.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kFailure);
  } catch (const std::exception& e) {
    return report(e.what(), kFailure);
  }
}

}  // namespace

std::string options_to_json(const std::vector<CommandOption>& options) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const CommandOption& option : options) {
    std::string key = option.names.substr(option.names.rfind(',') + 1);
    key.erase(0, key.find_first_not_of('-'));
    std::visit(
        [&](const auto* target) {
          using T = std::remove_cv_t<std::remove_pointer_t<decltype(target)>>;
          if constexpr (std::is_same_v<T, std::optional<int64_t>> || std::is_same_v<T, std::optional<double>>) {
            if (*target) json[key] = **target;
          } else {
            json[key] = *target;
          }
        },
        option.target);
  }
  return json.dump(2) + "\n";
}

int command(int argc, char** argv) {
  report_lost_pages();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that must not grow (ulimit -f) is an error of write(2), not the end
  CLI::App app(kAbout, "onnx-train");
  app.footer(kTour);
  app.require_subcommand(1);
  app.set_version_flag("--version", "onnx-train 0.1.0");
  const std::vector<Subcommand> subcommands = {check_command(),   build_command(),  fit_command(),     eval_command(),
                                               predict_command(), export_command(), flatten_command(), show_command(),
                                               grad_command(),    verify_command(), bench_command()};
  std::string links;
  for (const Subcommand& subcommand : subcommands) add_subcommand(&app, subcommand, &links);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::string hint = "onnx-train";
    for (const CLI::App* sub : app.get_subcommands()) hint += " " + sub->get_name();
    return report(concat(e.what(), " (see ", hint, " --help)"), kUsage);
  }
  allow_links_into(links);
  for (const Subcommand& subcommand : subcommands) {
    if (app.got_subcommand(subcommand.name)) return run(subcommand);
  }
  return kSuccess;
}

}  // namespace onnx_train
