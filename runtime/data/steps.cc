#include "runtime/data/steps.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

bool lists(const char* words, const std::string& word) {
  std::istringstream all(words);
  for (std::string one; all >> one;) {
    if (one == word) return true;
  }
  return false;
}

// X or X/Y; appends it to the step's text.
double read_ratio(ExpressionReader* reader, std::string* text) {
  const double x = reader->number();
  *text += number_text(x);
  if (!reader->take('/')) return x;
  const double y = reader->number();
  *text += "/" + number_text(y);
  return x / y;
}

std::vector<double> read_list(ExpressionReader* reader, std::string* text) {
  std::vector<double> numbers;
  if (!reader->take('(')) return {read_ratio(reader, text)};
  *text += "(";
  do {
    if (!numbers.empty()) *text += ", ";
    numbers.push_back(read_ratio(reader, text));
  } while (reader->take(',') && !reader->at(')'));  // (0.5,) is Python's way to write one number
  reader->expect(')', "after the numbers");
  *text += ")";
  return numbers;
}

void read_argument(ExpressionReader* reader, const StepRow& row, Step* step) {
  const size_t column = reader->column();
  if (reader->at_number()) {
    const double number = read_ratio(reader, &step->text);
    const bool fits = number >= row.low && number <= row.high && (!row.whole || number == std::floor(number));
    if (!fits || step->numbers.size() == row.most) {
      const std::string range = concat(row.whole ? "whole numbers" : "numbers", " from ", number_text(row.low), " to ",
                                       number_text(row.high));
      reader->fail_at(column, concat(row.usage, fits ? "" : concat(" takes ", range)));
    }
    step->numbers.push_back(number);
    return;
  }
  const Word word = reader->word("a number");
  step->text += word.text;
  if (reader->take('=')) {
    step->text += "=";
    if (!lists(row.keys, word.text)) reader->fail_at(column, concat("there is no '", word.text, "' in ", row.usage));
    step->named[word.text] = read_list(reader, &step->text);
  } else {
    if (!lists(row.words, word.text) || !step->word.empty()) {
      reader->fail_at(column, concat("'", word.text, "' is not known in ", row.usage,
                                     *row.words ? concat("; there are ", row.words) : std::string()));
    }
    step->word = word.text;
  }
}

Step read_step(ExpressionReader* reader, std::span<const StepRow> rows) {
  const Word word = reader->word("a step");
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const StepRow& r) { return r.name == word.text; });
  if (row == rows.end()) {
    const std::vector<std::string> names = step_names(rows);
    std::string known;
    for (const std::string& name : names) known += concat(known.empty() ? "" : ", ", name);
    reader->fail_at(word.column, concat("this version does not know the step '", word.text, "'; there are ", known,
                                        did_you_mean(word.text, names)));
  }
  Step step{word.text, {}, "", {}, word.text};
  if (reader->take('(')) {
    step.text += "(";
    for (bool first = true; first || reader->take(','); first = false) {
      if (!first) step.text += ", ";
      if (first && reader->at(')')) break;
      read_argument(reader, *row, &step);
    }
    reader->expect(')', "the end of the step");
    step.text += ")";
  }
  if (step.numbers.size() < row->least) reader->fail_at(word.column, concat("expected ", row->usage));
  return step;
}

}  // namespace

std::vector<Step> read_steps(ExpressionReader* reader, std::span<const StepRow> rows) {
  std::vector<Step> steps;
  do {
    steps.push_back(read_step(reader, rows));
  } while (reader->take(','));
  return steps;
}

std::vector<Step> read_steps(const std::string& option, const std::string& text, std::span<const StepRow> rows) {
  ExpressionReader reader(option, text);
  std::vector<Step> steps = read_steps(&reader, rows);
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  return steps;
}

std::vector<std::string> step_names(std::span<const StepRow> rows) {
  std::vector<std::string> names;
  for (const StepRow& row : rows) names.emplace_back(row.name);
  return names;
}

std::string text_of(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) text += concat(text.empty() ? "" : ", ", step.text);
  return text;
}

const Step* find_step(const std::vector<Step>& steps, const std::string& name) {
  const auto found = std::find_if(steps.begin(), steps.end(), [&](const Step& step) { return step.name == name; });
  return found == steps.end() ? nullptr : &*found;
}

}  // namespace onnx_train
