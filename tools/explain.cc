// What an error's code means: the pages of docs/errors, which the command holds.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/support/report_text.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ErrorPage {
  const char* code;
  const char* text;
};

constexpr ErrorPage kErrorPages[] = {
#include "error_pages.inc"
};

// The page for a terminal: without the signs of headings, bold words and blocks of code, which are indented.
std::string as_plain_text(const std::string& page) {
  std::string plain;
  std::istringstream lines(page);
  bool is_code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      is_code = !is_code;
      continue;
    }
    if (line.starts_with("# ")) line.erase(0, 2);
    for (size_t at = 0; !is_code && (at = line.find("**", at)) != std::string::npos;) line.erase(at, 2);
    plain += concat(is_code && !line.empty() ? "  " : "", line, "\n");
  }
  return plain;
}

std::string list_of_codes() {
  TextTable table("lw");
  for (const ErrorRow& row : error_rows()) table.add({row.text, row.title});
  return table.text(0, table_width());
}

// "OT1001" of "ot1001" or "[OT1001]".
std::string code_of(const std::string& given) {
  std::string code;
  for (const unsigned char c : given) {
    if (c != '[' && c != ']') code += static_cast<char>(std::toupper(c));
  }
  return code;
}

int explain(const std::string& given) {
  if (given.empty()) {
    print(list_of_codes());
    return 0;
  }
  const std::string code = code_of(given);
  const auto* const page =
      std::find_if(std::begin(kErrorPages), std::end(kErrorPages), [&](const ErrorPage& p) { return code == p.code; });
  if (page == std::end(kErrorPages)) {
    std::vector<std::string> known;
    for (const ErrorRow& row : error_rows()) known.emplace_back(row.text);
    throw UsageError(
        concat("there is no error '", given, "'", did_you_mean(code, known), " (onnx-train explain lists all)"));
  }
  print(as_plain_text(page->text));
  return 0;
}

}  // namespace

Subcommand explain_command() {
  auto code = std::make_shared<std::string>();
  return {"explain",
          "What the code at the end of an error means, and the ways out",
          "  onnx-train explain OT2002\n"
          "  onnx-train explain",
          {{"CODE", code.get(), "the code, such as OT2002 [a list of all]", "CODE"}},
          [code] { return explain(*code); }};
}

}  // namespace onnx_train
