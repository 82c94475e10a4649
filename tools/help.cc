#include "tools/help.h"

#include <algorithm>
#include <sstream>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

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
    "\nonnx-train COMMAND --help says more.\n";

constexpr size_t kNameColumn = 28, kNarrowColumn = 6, kNarrow = 60;

// "  -o, --output FILE         what it is"; the text goes to a line of its own where the names leave no room for it.
std::string row(const std::string& names, const std::string& help, size_t width) {
  const std::string line = "  " + names;
  const size_t column = width < kNarrow ? kNarrowColumn : kNameColumn;
  if (line.size() + 2 > column) return concat(wrap(names, width, 2, 2), "\n", wrap(help, width, column), "\n");
  return line + wrap(help, width, column).substr(line.size()) + "\n";
}

// Commands are indented; all else is prose, a paragraph a line.
std::string examples_text(const std::string& examples, size_t width) {
  std::istringstream lines(examples);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += (line.starts_with("  ") ? wrap_command(line.substr(2), width, 2) : wrap(line, width, 0)) + "\n";
  }
  return text;
}

std::string names_text(const CommandOption& option) {
  std::string names;
  for (char c : option.names) names += c == ',' ? ", " : std::string(1, c);
  return option.value.empty() || is_positional(option) ? names : concat(names, " ", option.value);
}

std::string option_text(const CommandOption& option) {
  std::string text = option.help, choices;
  for (const std::string& choice : option.choices) choices += concat(choices.empty() ? "" : ", ", choice);
  if (!choices.empty()) text = concat(choices, "; ", text);
  return option.required && !is_positional(option) ? text + " (required)" : text;
}

}  // namespace

std::string help_text(const std::vector<Subcommand>& subcommands, size_t width) {
  std::string text = concat(wrap(kAbout, width, 0), "\nUsage: onnx-train COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Subcommand& subcommand : subcommands) text += row(subcommand.name, subcommand.summary, width);
  text += concat("\nOptions:\n", row("-h, --help", "print this", width), row("--version", "print the version", width));
  return concat(text, "\n", examples_text(kTour, width));
}

std::string help_text(const Subcommand& subcommand, size_t width) {
  std::string usage = concat("Usage: onnx-train ", subcommand.name, " [OPTIONS]"), positional, options;
  for (const CommandOption& option : subcommand.options) {
    if (is_positional(option)) usage += " " + option.names;
    (is_positional(option) ? positional : options) += row(names_text(option), option_text(option), width);
  }
  return concat(wrap(subcommand.summary, width, 0), "\n", wrap(usage, width, 0, 4), "\n\n", positional, "\nOptions:\n",
                options, row("-h, --help", "print this", width), "\nExamples:\n",
                examples_text(subcommand.examples, width));
}

}  // namespace onnx_train
