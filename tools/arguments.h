// Reads command lines by the options of a subcommand: `--name VALUE`, `--name=VALUE`, `-n VALUE`, flags, arguments by
// position, `--` before arguments that start with a dash. Every value is checked as it is read, so that nothing has
// happened yet when one is wrong. Stateless but for the targets of the options; one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/subcommand.h"

namespace onnx_train {

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

// Reads the arguments after the subcommand's name. Returns false when they ask for help. Throws UsageError for an
// option that is unknown (with those that are spelled much like it), given twice, without its value, or missing.
bool read_arguments(const Subcommand& subcommand, const std::vector<std::string>& arguments);

}  // namespace onnx_train
