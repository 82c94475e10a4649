// Scripts that let a shell complete the command's arguments, made from the tables of options.
#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

enum class Completes { kNothing, kFlag, kWords, kFiles, kFolders };

std::vector<std::string> words_of(const CommandOption& option) {
  if (!option.choices.empty()) return option.choices;
  if (option.words) return option.words();
  if (std::holds_alternative<bool*>(option.target.to)) return {"on", "off"};
  return option.target.automatic ? std::vector<std::string>{"auto"} : std::vector<std::string>();
}

Completes completes(const CommandOption& option) {
  if (is_flag(option)) return Completes::kFlag;
  if (!words_of(option).empty()) return Completes::kWords;
  if (option.value == "FILE" || option.value == "PATH") return Completes::kFiles;
  return option.value == "DIR" ? Completes::kFolders : Completes::kNothing;
}

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  std::string text;
  for (const std::string& word : words) text += concat(text.empty() ? "" : between, word);
  return text;
}

// "-o,--output" -> "-o", "--output".
std::vector<std::string> spellings(const CommandOption& option) {
  const size_t comma = option.names.find(',');
  if (comma == std::string::npos) return {option.names};
  return {option.names.substr(0, comma), option.names.substr(comma + 1)};
}

// Text in single quotes of any shell.
std::string in_quotes(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::vector<CommandOption> with_help(const Subcommand& subcommand) {
  static bool help = false;
  std::vector<CommandOption> options = subcommand.options;
  options.push_back({"-h,--help", &help, "print what there is"});
  return options;
}

// ---- bash

// The cases of options that take a value, by what completes it: "'fit --dtype'".
std::string bash_values(const std::vector<Subcommand>& subcommands) {
  std::string text;
  for (const Subcommand& subcommand : subcommands) {
    for (const CommandOption& option : subcommand.options) {
      const Completes what = completes(option);
      if (is_positional(option) || what == Completes::kFlag) continue;
      std::vector<std::string> cases;
      for (const std::string& name : spellings(option)) cases.push_back(in_quotes(subcommand.name + " " + name));
      text += concat("    ", joined(cases, "|"), ") ");
      if (what == Completes::kWords) text += concat("words=", in_quotes(joined(words_of(option))), " ;;\n");
      if (what == Completes::kFiles) text += "return ;;\n";
      if (what == Completes::kFolders) text += "compopt -o dirnames 2> /dev/null; return ;;\n";
      if (what == Completes::kNothing) text += "compopt +o default 2> /dev/null; return ;;\n";
    }
  }
  return text;
}

std::string bash_script(const std::vector<Subcommand>& subcommands) {
  std::vector<std::string> commands;
  std::string options, positional;
  for (const Subcommand& subcommand : subcommands) {
    commands.push_back(subcommand.name);
    std::vector<std::string> names;
    for (const CommandOption& option : with_help(subcommand)) {
      if (!is_positional(option)) names.push_back(spellings(option).back());
      if (is_positional(option) && !words_of(option).empty()) {
        positional += concat("    ", subcommand.name, ") words=", in_quotes(joined(words_of(option))), " ;;\n");
      }
    }
    options += concat("    ", subcommand.name, ") words=", in_quotes(joined(names)), " ;;\n");
  }
  return concat(R"(# Completion for bash. Use it by: source <(onnx-train completion bash)
_onnx_train() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words=
  if [ "$previous" = '=' ]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [ "$current" = '=' ]; then current=; fi
  COMPREPLY=()
  case "$command $previous" in
)",
                bash_values(subcommands), R"(  esac
  if [ "$COMP_CWORD" = 1 ]; then
    words=')",
                joined(commands), R"( --help --version'
  elif [ -z "$words" ] && [ "${current:0:1}" = '-' ]; then
    case "$command" in
)",
                options, R"(    esac
  elif [ -z "$words" ]; then
    case "$command" in
)",
                positional, R"(    esac
  fi
  if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$current")); fi
}
complete -o default -F _onnx_train onnx-train
)");
}

// ---- zsh

// Help in a specification of _arguments: brackets and colons mean something there.
std::string zsh_text(const std::string& text) {
  std::string safe;
  for (char c : text) safe += std::string("[]:\\").find(c) == std::string::npos ? std::string(1, c) : concat("\\", c);
  return safe;
}

std::string zsh_action(const CommandOption& option) {
  switch (completes(option)) {
    case Completes::kWords: return concat("(", joined(words_of(option)), ")");
    case Completes::kFiles: return "_files";
    case Completes::kFolders: return "_files -/";
    case Completes::kFlag:
    case Completes::kNothing: break;
  }
  return " ";
}

std::string zsh_script(const std::vector<Subcommand>& subcommands) {
  std::string commands, cases;
  for (const Subcommand& subcommand : subcommands) {
    commands += concat("    ", in_quotes(concat(subcommand.name, ":", zsh_text(subcommand.summary))), "\n");
    cases += concat("    ", subcommand.name, ") _arguments");
    for (const CommandOption& option : with_help(subcommand)) {
      const std::string help = zsh_text(option.help),
                        value = zsh_text(option.value.empty() ? option.names : option.value);
      const bool flag = completes(option) == Completes::kFlag;
      if (is_positional(option)) {
        cases += concat(" \\\n      ", in_quotes(concat("*:", value, ":", zsh_action(option))));
        continue;
      }
      for (const std::string& name : spellings(option)) {
        const std::string takes = flag ? "" : name.starts_with("--") ? "=" : "+";
        const std::string rest = flag ? "" : concat(":", value, ":", zsh_action(option));
        cases += concat(" \\\n      ", in_quotes(concat(name, takes, "[", help, "]", rest)));
      }
    }
    cases += " ;;\n";
  }
  return concat(R"(#compdef onnx-train
# Completion for zsh. Use it by: source <(onnx-train completion zsh), or as a file _onnx-train in $fpath
_onnx_train() {
  local -a commands
  commands=(
)",
                commands, R"(  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
)",
                cases, R"(  esac
}
if [ "$funcstack[1]" = _onnx-train ]; then _onnx_train "$@"; else compdef _onnx_train onnx-train; fi
)");
}

// ---- fish

std::string fish_text(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' || c == '\\' ? concat("\\", c) : std::string(1, c);
  return quoted + "'";
}

std::string fish_values(const CommandOption& option) {
  switch (completes(option)) {
    case Completes::kFlag: return "";
    case Completes::kWords: return " -x -a " + fish_text(joined(words_of(option)));
    case Completes::kFiles: return " -r -F";
    case Completes::kFolders: return " -x -a '(__fish_complete_directories)'";
    case Completes::kNothing: break;
  }
  return " -x";
}

std::string fish_script(const std::vector<Subcommand>& subcommands) {
  std::string text = "# Completion for fish. Use it by: onnx-train completion fish | source\n";
  for (const Subcommand& subcommand : subcommands) {
    text += concat("complete -c onnx-train -f -n __fish_use_subcommand -a ", subcommand.name, " -d ",
                   fish_text(subcommand.summary), "\n");
  }
  for (const Subcommand& subcommand : subcommands) {
    const std::string seen = concat("complete -c onnx-train -n '__fish_seen_subcommand_from ", subcommand.name, "'");
    for (const CommandOption& option : with_help(subcommand)) {
      if (is_positional(option)) {
        text += concat(seen,
                       completes(option) == Completes::kWords ? " -f -a " + fish_text(joined(words_of(option))) : " -F",
                       "\n");
        continue;
      }
      std::string names;
      for (const std::string& name : spellings(option)) {
        names += name.starts_with("--") ? concat(" -l ", name.substr(2)) : concat(" -s ", name.substr(1));
      }
      text += concat(seen, names, fish_values(option), " -d ", fish_text(option.help), "\n");
    }
  }
  return text;
}

struct Shell {
  const char* name;
  std::string (*script)(const std::vector<Subcommand>&);
};
constexpr Shell kShells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};

int print_script(const std::string& shell) {
  for (const Shell& row : kShells) {
    if (shell == row.name) print(row.script(all_subcommands()));
  }
  return 0;
}

}  // namespace

Subcommand completion_command() {
  auto shell = std::make_shared<std::string>();
  std::vector<std::string> names;
  for (const Shell& row : kShells) names.emplace_back(row.name);
  return {"completion",
          "Print a script that lets bash, zsh or fish complete commands, options and their values",
          "  source <(onnx-train completion bash)\n"
          "  onnx-train completion zsh > ~/.zfunc/_onnx-train\n"
          "  onnx-train completion fish | source",
          {{"SHELL", shell.get(), "the shell", "SHELL", true, names}},
          [shell] { return print_script(*shell); }};
}

}  // namespace onnx_train
