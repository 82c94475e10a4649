#include "tools/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "onnx_passes/text/expression.h"
#include "runtime/models/build_settings.h"
#include "tools/config.h"

namespace onnx_train {
namespace {

template <typename... Args>
[[noreturn]] void refuse(ErrorCode code, const Args&... args) {
  throw UsageError(concat(args...), code);
}

bool is_list(const CommandOption& option) {
  return std::holds_alternative<std::vector<std::string>*>(option.target.to);
}

std::string name_of(const CommandOption& option) {
  return is_positional(option) ? option.names : concat("--", key_of(option));
}

// The parser collects texts; assign() reads them, so that a value means the same wherever it comes from.
CLI::Option* add(const CommandOption& option, CLI::App* app) {
  if (is_flag(option)) return app->add_flag(option.names)->disable_flag_override();
  const auto collect = [](const std::vector<std::string>&) {};
  return app->add_option_function<std::vector<std::string>>(option.names, collect)
      ->expected(1, is_positional(option) && is_list(option) ? CLI::detail::expected_max_vector_size : 1)
      ->allow_extra_args(is_positional(option) && is_list(option))
      ->take_all()
      ->type_name(option.value);
}

bool is_name(const std::string& text, const Subcommand& subcommand) {
  return std::any_of(subcommand.options.begin(), subcommand.options.end(),
                     [&](const CommandOption& option) { return !is_positional(option) && name_of(option) == text; });
}

void take(const CommandOption& option, const std::vector<std::string>& texts) {
  if (texts.size() > 1 && !is_list(option)) refuse(ErrorCode::kOptionValue, name_of(option), " is given twice");
  for (const std::string& text : texts) assign(option, text);
}

[[noreturn]] void refuse_missing(const CommandOption& option, const Subcommand& subcommand) {
  refuse(ErrorCode::kMissingOption, subcommand.name, " needs ", name_of(option),
         is_positional(option) ? "" : " " + option.value, ": ", option.help);
}

[[noreturn]] void refuse_extra(const std::string& text, const Subcommand& subcommand) {
  std::string positional;
  std::vector<std::string> names;
  for (const CommandOption& option : subcommand.options) {
    if (is_positional(option)) {
      positional += concat(positional.empty() ? "one " : " and one ", option.names);
    } else {
      names.push_back(name_of(option));
    }
  }
  if (text.size() < 2 || text[0] != '-')
    refuse(ErrorCode::kUnknownOption, subcommand.name, " takes ", positional, "; what is '", text, "'?");
  const std::string name = text.substr(0, text.find('='));
  std::string initials = "--";  // --learning-rate is --lr
  for (size_t i = 2; i < name.size(); ++i) {
    if (name[i - 1] == '-') initials += name[i];
  }
  if (std::count(names.begin(), names.end(), initials) > 0 && name != initials)
    refuse(ErrorCode::kUnknownOption, subcommand.name, " has no option '", name, "'; did you mean '", initials, "'?");
  BuildSettings settings;
  for (const CommandOption& option :
       subcommand.name == "fit" ? build_options(&settings) : std::vector<CommandOption>()) {
    if (name_of(option) != name) continue;
    refuse(ErrorCode::kUnknownOption, "fit has no option '", name,
           "', which is one of build: onnx-train build MODEL -o train.onnx ", name,
           " makes the training model, which fit then trains");
  }
  refuse(ErrorCode::kUnknownOption, subcommand.name, " has no option '", name, "'", did_you_mean(name, names));
}

const std::string* file_of(const CommandOption& option) {
  const auto* text = std::get_if<std::string*>(&option.target.to);
  const bool is_file = option.value == "FILE" || option.value == "PATH";
  return text && is_file && !(*text)->empty() ? *text : nullptr;
}

// What is read would be gone once the output is written.
void refuse_own_input(const std::vector<CommandOption>& options) {
  const auto output = std::find_if(options.begin(), options.end(), [](const auto& o) { return key_of(o) == "output"; });
  const std::string* const written = output == options.end() ? nullptr : file_of(*output);
  if (!written) return;
  for (const CommandOption& option : options) {
    const std::string* const read = file_of(option);
    std::error_code error;
    if (!read || read == written || !std::filesystem::equivalent(*read, *written, error) || error) continue;
    refuse(ErrorCode::kUsage, *written, " is ", name_of(option), ", which is read; give --output another file");
  }
}

}  // namespace

bool read_arguments(const Subcommand& subcommand, const std::vector<std::string>& arguments) {
  const auto asks_for_help = [](const std::string& text) { return text == "--help" || text == "-h"; };
  if (std::any_of(arguments.begin(), arguments.end(), asks_for_help)) return false;
  CLI::App app;
  app.set_help_flag();
  app.allow_windows_style_options(false);  // /models/m.onnx is a path everywhere
  app.allow_extras();                      // refuse_extra says what is meant
  std::vector<const CLI::Option*> parsed;
  for (const CommandOption& option : subcommand.options) parsed.push_back(add(option, &app));
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    refuse(ErrorCode::kUsage, error.what());
  }
  const std::vector<CommandOption>& options = subcommand.options;
  for (size_t i = 0; i < options.size(); ++i) {
    for (const std::string& text : parsed[i]->results()) {
      if (is_name(text, subcommand))
        refuse(ErrorCode::kMissingOption, name_of(options[i]), " needs a value: ", options[i].value);
    }
  }
  std::vector<std::string> extras = app.remaining();
  std::erase(extras, "--");
  const auto is_option = [](const std::string& text) { return text.size() > 1 && text[0] == '-'; };
  const auto first = std::find_if(extras.begin(), extras.end(), is_option);
  if (!extras.empty()) refuse_extra(first != extras.end() ? *first : extras.front(), subcommand);
  for (size_t i = 0; i < options.size(); ++i) {
    if (parsed[i]->count() > 0) take(options[i], parsed[i]->results());
  }
  std::set<std::string> given;
  for (size_t i = 0; i < options.size(); ++i) {
    if (parsed[i]->count() > 0) given.insert(key_of(options[i]));
  }
  for (const CommandOption& option : options) {
    if (key_of(option) == "config" && given.count("config") > 0) read_config(*value_of(option), options, &given);
  }
  for (const CommandOption& option : options) {
    if (option.required && given.count(key_of(option)) == 0) refuse_missing(option, subcommand);
  }
  refuse_own_input(options);
  if (subcommand.given) *subcommand.given = std::move(given);
  return true;
}

}  // namespace onnx_train
