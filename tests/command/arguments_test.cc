#include "tools/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tools/command.h"
#include "tools/help.h"

namespace onnx_train::arguments_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Outcome {
  int status;
  std::string out, errors;
};

Outcome call(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "onnx-train");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = command(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  const std::string errors = testing::internal::GetCapturedStderr();
  return {status, testing::internal::GetCapturedStdout(), errors};
}

// Bad usage: status 2, nothing printed but one line, no file made.
void expect_usage_error(const std::vector<std::string>& arguments, const std::string& says) {
  std::string line;
  for (const std::string& argument : arguments) line += " '" + argument + "'";
  const Outcome outcome = call(arguments);
  EXPECT_EQ(outcome.status, 2) << line << ": " << outcome.errors;
  EXPECT_EQ(outcome.out, "") << line;
  EXPECT_EQ(std::count(outcome.errors.begin(), outcome.errors.end(), '\n'), 1) << line << ": " << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr(says)) << line;
}

std::string first_name(const CommandOption& option) { return option.names.substr(0, option.names.find(',')); }
std::string long_name(const CommandOption& option) { return "--" + key_of(option); }

// A call of `subcommand` that lacks nothing; its files do not exist.
std::vector<std::string> complete_call(const Subcommand& subcommand, const CommandOption* besides) {
  std::vector<std::string> arguments = {subcommand.name};
  for (const CommandOption& option : subcommand.options) {
    if (!option.required || &option == besides) continue;
    if (!is_positional(option)) arguments.push_back(first_name(option));
    arguments.push_back("missing_file");
  }
  if (subcommand.name == "fit") arguments.insert(arguments.end(), {"--steps", "1"});
  return arguments;
}

template <typename T>
bool is_number(const CommandOption& option) {
  return std::holds_alternative<T*>(option.target.to);
}

// What the option must not take; empty when it takes any text.
std::vector<std::string> bad_values(const CommandOption& option) {
  using std::optional;
  const Range& range = option.target.range;
  const bool is_real = is_number<double>(option) || is_number<optional<double>>(option);
  const bool is_whole =
      is_number<int64_t>(option) || is_number<uint64_t>(option) || is_number<optional<int64_t>>(option);
  std::vector<std::string> values = {"", " ", "x", "nan", "inf", "-inf", "1e400", "0x10", "1 2", "1,5", "-0.5"};
  if (is_real || is_whole) {
    values.push_back(std::to_string(static_cast<int64_t>(range.least) - 1));
    if (range.above) values.push_back(std::to_string(static_cast<int64_t>(range.least)));
    if (range.most < 1e6) values.push_back(std::to_string(static_cast<int64_t>(range.most) + 1));
  }
  if (is_real) values.insert(values.end(), {"1e39", "-1e-320", "1e-60"});
  if (is_whole) values.insert(values.end(), {"1.5", "1e3", "-9223372036854775809", "18446744073709551616"});
  if (is_real || is_whole) return values;
  const bool is_path = option.value == "FILE" || option.value == "DIR";
  if (option.target.check && is_path) return {"", "x.pt"};
  if (option.target.check) return {"", "nan", "=", "1e400", "inf"};
  return option.choices.empty() ? std::vector<std::string>() : std::vector<std::string>{"", " ", "x", "-1"};
}

class InAnEmptyFolder : public testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    folder_ = fs::path(testing::TempDir()) / "arguments";
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::current_path(folder_);
  }
  void TearDown() override {
    EXPECT_TRUE(fs::is_empty(folder_));
    fs::current_path(before_);
  }

 private:
  fs::path before_, folder_;
};

using Arguments = InAnEmptyFolder;

TEST_F(Arguments, ValuesThatNoOptionTakesAreBadUsageInEveryCommand) {
  size_t checked = 0;
  for (const Subcommand& subcommand : all_subcommands()) {
    for (const CommandOption& option : subcommand.options) {
      for (const std::string& value : bad_values(option)) {
        std::vector<std::string> arguments = complete_call(subcommand, &option);
        arguments.push_back(long_name(option) + "=" + value);
        expect_usage_error(arguments, long_name(option));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 500u);
}

TEST_F(Arguments, OptionsGivenTwiceAreBadUsageUnlessTheyAreLists) {
  for (const Subcommand& subcommand : all_subcommands()) {
    for (const CommandOption& option : subcommand.options) {
      if (is_positional(option) || is_number<std::vector<std::string>>(option)) continue;
      std::vector<std::string> arguments = {subcommand.name};
      const std::string value = option.choices.empty() ? value_of(option).value_or("1") : option.choices[0];
      const bool takes = bad_values(option).empty() || !option.target.check;
      for (int i = 0; i < 2; ++i) {
        arguments.push_back(long_name(option));
        if (!is_flag(option)) arguments.push_back(takes ? value : "-1");
      }
      // Numbers that have no default that is allowed: one is, always.
      if (takes && option.choices.empty() && !is_flag(option)) arguments[2] = arguments[4] = "1";
      expect_usage_error(arguments, takes ? long_name(option) + " is given twice" : long_name(option));
    }
  }
}

TEST_F(Arguments, MisspeltOptionsNameTheOneThatIsMeant) {
  for (const Subcommand& subcommand : all_subcommands()) {
    for (const CommandOption& option : subcommand.options) {
      const std::string name = long_name(option), cut = name.substr(0, name.size() - 1);
      const auto is_other = [&](const CommandOption& other) { return long_name(other) == cut; };  // --folds, --fold
      if (is_positional(option) || cut.size() < 5 || std::ranges::any_of(subcommand.options, is_other)) continue;
      expect_usage_error({subcommand.name, cut, "1"}, "has no option '" + cut + "'; did you mean '");
      expect_usage_error({subcommand.name, cut, "1"}, "'" + name + "'");
    }
  }
}

TEST_F(Arguments, MisspeltCommandsAndValuesNameTheOneThatIsMeant) {
  expect_usage_error({"chek"}, "there is no command 'chek'; did you mean 'check'?");
  expect_usage_error({"build", "--los", "mse"}, "did you mean '--loss'");
  expect_usage_error({"fit", "--epoch", "1"}, "did you mean '--epochs'");
  expect_usage_error({"fit", "--schedule", "cosin"}, "there is no schedule 'cosin'; take constant, ");
  expect_usage_error({"fit", "--schedule", "cosin"}, "did you mean 'cosine'?");
  expect_usage_error({"build", "--precision", "int8"}, "take float32, gemm-bf16, bf16, fp16, fp8 or auto");
  expect_usage_error({"build", "--init", "xaver"}, "did you mean 'xavier'?");
  expect_usage_error({"build", "--mode", "frozn"}, "did you mean 'frozen'?");
  expect_usage_error({"completely-different"}, "there is no command 'completely-different' (see");
}

TEST_F(Arguments, WhatIsMissingIsNamed) {
  expect_usage_error({}, "give a command");
  expect_usage_error({"fit"}, "fit needs MODEL");
  expect_usage_error({"fit", "train.onnx"}, "fit needs --data PATH");
  expect_usage_error({"fit", "train.onnx", "--data"}, "--data: 1 required PATH missing");
  expect_usage_error({"fit", "train.onnx", "--data", "--epochs", "3"}, "--data needs a value");
  expect_usage_error({"export", "a.onnx", "b.onnx"}, "what is 'b.onnx'");
  expect_usage_error({"fit", "--json=yes"}, "json was given a disallowed flag override");
}

TEST_F(Arguments, AreReadInEveryUsualForm) {
  double rate = 0;
  int64_t count = 0;
  bool flag = false;
  std::string model, output;
  std::vector<std::string> list;
  const Subcommand subcommand = {"test",
                                 "",
                                 "",
                                 {{"MODEL", &model, "", "FILE", true},
                                  {"-o,--output", &output, "", "FILE"},
                                  {"--rate", &rate, "", "X"},
                                  {"--count", &count, "", "N"},
                                  {"--flag", &flag, ""},
                                  {"--list", &list, "", "NAMES"}},
                                 {}};
  EXPECT_TRUE(read_arguments(
      subcommand, {"--rate", "1e-3", "-oa.onnx", "--list", "a,b", "--count=7", "--flag", "--list=c", "--", "-model"}));
  EXPECT_EQ(rate, 1e-3);
  EXPECT_EQ(count, 7);
  EXPECT_EQ(output, "a.onnx");
  EXPECT_EQ(model, "-model");
  EXPECT_TRUE(flag);
  EXPECT_THAT(list, testing::ElementsAre("a", "b", "c"));
  EXPECT_FALSE(read_arguments(subcommand, {"--rate", "--help"}));
}

TEST(Help, LinesFitTheTerminalAndWordsStayWhole) {
  for (const size_t width : {40u, 60u, 80u, 200u}) {
    for (const Subcommand& subcommand : all_subcommands()) {
      const std::string text = help_text(subcommand, width);
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        const bool is_quoted = std::count(line.begin(), line.end(), '\'') == 2;  // an argument that is one word
        EXPECT_TRUE(line.size() <= width || is_quoted) << width << ": " << line;
      }
      for (const CommandOption& option : subcommand.options) {
        std::istringstream words(option.help);
        for (std::string word; words >> word;) EXPECT_THAT(text, HasSubstr(word)) << subcommand.name;
      }
    }
  }
}

}  // namespace
}  // namespace onnx_train::arguments_test
