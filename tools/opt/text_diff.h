// The difference of two texts, line by line. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train {

struct DiffLine {
  char kind;  // ' ' in both, '-' in the first text, '+' in the second, '@' what comes before lines that are left out
  std::string text;
};

// Lines that differ, with `context` equal lines around them; empty for equal texts. Lines that both texts have once are
// matched first, as far as they have one order, then those between them (patience diff): the lines of a model's text
// name their values, and most are unique.
std::vector<DiffLine> diff_lines(const std::string& before, const std::string& after, size_t context = 3);

}  // namespace onnx_train
