// Lists of calls as --preprocess and --augment take them: "resize(256), crop(224), normalize(imagenet)". A table of
// rows says which calls there are and what they take. Plain values; any thread. Functions throw Error that names the
// text and the column.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "onnx_passes/text/expression.h"

namespace onnx_train {

struct StepRow {
  const char* name;
  const char* usage;       // "resize(256) or resize(224, 224)"
  size_t least, most;      // numbers without a name
  double low, high;        // all of them
  bool whole = false;      // they are integers
  const char* words = "";  // names that it takes, one at most: "bilinear bicubic nearest"
  const char* keys = "";   // of lists of numbers: "mean std"
};

std::vector<std::string> step_names(std::span<const StepRow> rows);

struct Step {
  std::string name;
  std::vector<double> numbers;
  std::string word;
  std::map<std::string, std::vector<double>> named;
  std::string text;  // "resize(256)": what gives the same step again

  double number(size_t i, double otherwise) const { return i < numbers.size() ? numbers[i] : otherwise; }
};

// Reads steps separated by commas, at least one.
std::vector<Step> read_steps(ExpressionReader* reader, std::span<const StepRow> rows);
// The same for a whole text; `option` names it in errors.
std::vector<Step> read_steps(const std::string& option, const std::string& text, std::span<const StepRow> rows);
std::string text_of(const std::vector<Step>& steps);
// Null if there is none of that name.
const Step* find_step(const std::vector<Step>& steps, const std::string& name);

// Those of --augment (images/augment.cc).
std::vector<std::string> augment_step_names();

}  // namespace onnx_train
