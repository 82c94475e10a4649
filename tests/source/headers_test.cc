// One name means one thing: two definitions of one class would be a silent violation of the one-definition rule.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>
#include "tests/support/paths.h"

namespace onnx_train::headers_test {
namespace {

// The qualified names of the types that a file defines in named namespaces, and of the constants if it is a header.
// Relies on the format of this repository: whatever is in a namespace starts in the first column.
std::set<std::string> names_in(std::istream& file, bool is_header) {
  static const std::regex opening(R"re(^(inline )?namespace ?([\w:]*) ?\{)re");
  static const std::regex type(R"re(^(struct|class|union|enum class|enum)( \[\[[^\]]*\]\]| alignas\([^)]*\))* (\w+))re"
                               R"re(( final)?( : .*| \{.*|)$)re");
  static const std::regex constant(R"re(^(inline )?constexpr [^=({]*\b(k[A-Z]\w*)(\[[^\]]*\])* ?[={])re");
  std::set<std::string> names;
  std::vector<std::string> spaces;
  int unnamed = 0;
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_search(line, match, opening)) {
      spaces.push_back(match[2]);
      unnamed += match[2].length() == 0;
    } else if (line.starts_with("}  // namespace") && !spaces.empty()) {
      unnamed -= spaces.back().empty();
      spaces.pop_back();
    } else if (unnamed == 0) {
      std::string space;
      for (const std::string& name : spaces) space += name + "::";
      if (std::regex_search(line, match, type)) names.insert(space + match[3].str());
      if (is_header && std::regex_search(line, match, constant)) names.insert(space + match[2].str());
    }
  }
  return names;
}

std::set<std::string> names_in_text(const std::string& text, bool is_header) {
  std::istringstream file(text);
  return names_in(file, is_header);
}

TEST(Headers, TheReaderOfNamesFindsDefinitionsOnly) {
  const std::string text =
      "namespace a::b {\n\nstruct Declared;\nstruct Empty {};\nclass Final final : public Empty {\n  struct Inner {\n"
      "  };\n};\nstruct Empty::Other {\n};\ntemplate <>\nstruct Special<int> {\n};\nenum class Kind { kOne };\n"
      "constexpr int64_t kRows = 3;\ninline constexpr Pair kPair{};\nnamespace {\nstruct Hidden {\n};\n}  // "
      "namespace\n"
      "class Wraps\n    : public Empty {\n};\n\n}  // namespace a::b\n\nstruct Global {\n};\n";
  const std::set<std::string> types = {"a::b::Empty", "a::b::Final", "a::b::Kind", "a::b::Wraps", "Global"};
  EXPECT_EQ(names_in_text(text, false), types);
  std::set<std::string> all = types;
  all.insert({"a::b::kRows", "a::b::kPair"});
  EXPECT_EQ(names_in_text(text, true), all);
}

TEST(Headers, NoTwoFilesDefineOneName) {
  const std::filesystem::path root = source_folder();
  std::map<std::string, std::set<std::string>> files_of;
  for (const char* folder : {"platform", "onnx_passes", "kernels", "runtime", "tools", "tests"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const bool is_header = entry.path().extension() == ".h";
      if (!is_header && entry.path().extension() != ".cc") continue;
      // It stands for onnx_passes/ir/types.h where NVRTC compiles, and defines as much of it as is needed there.
      if (entry.path().filename() == "native_half.h") continue;
      std::ifstream file(entry.path());
      for (const std::string& name : names_in(file, is_header)) {
        files_of[name].insert(std::filesystem::relative(entry.path(), root).string());
      }
    }
  }
  EXPECT_GT(files_of.size(), 200u);
  for (const auto& [name, files] : files_of) {
    std::string list;
    for (const std::string& file : files) list += " " + file;
    EXPECT_EQ(files.size(), 1u) << name << " is defined in" << list << "; rename all but one";
  }
}

}  // namespace
}  // namespace onnx_train::headers_test
