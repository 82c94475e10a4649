#include "onnx_passes/training/optimizer_spec.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

using Hyperparameters = std::vector<Hyperparameter>;

// What is valid, for messages.
std::string describe(const Hyperparameter& h) {
  std::string choices;
  switch (h.valid) {
    case ValidNumbers::kNonNegative: return "0 or more";
    case ValidNumbers::kFraction: return "in [0, 1)";
    case ValidNumbers::kNonPositive: return "0 or less";
    case ValidNumbers::kSmallWhole: return "a whole number from 0 to 99";
    case ValidNumbers::kFlag: return "true or false";
    case ValidNumbers::kChoice: break;
  }
  for (const char* choice : h.choices) choices += concat(choices.empty() ? "" : " or ", choice);
  return choices;
}

bool is_valid(const Hyperparameter& h, double value) {
  if (!std::isfinite(value)) return false;
  switch (h.valid) {
    case ValidNumbers::kNonNegative: return value >= 0;
    case ValidNumbers::kFraction: return value >= 0 && value < 1;
    case ValidNumbers::kNonPositive: return value <= 0;
    case ValidNumbers::kSmallWhole: return value >= 0 && value <= 99 && value == std::floor(value);
    case ValidNumbers::kFlag: return value == 0 || value == 1;
    case ValidNumbers::kChoice: return false;  // it is a word
  }
  return false;
}

double value_of(const Hyperparameter& h, const Option& option, double number, const ExpressionReader& reader) {
  if (is_valid(h, number)) return number;
  reader.fail_at(option.column,
                 concat("'", option.key.text, "' is ", number_text(number), "; it must be ", describe(h)));
}

double read_value(const Hyperparameter& h, const Option& option, const ExpressionReader& reader) {
  if (const double* number = std::get_if<double>(&option.value)) return value_of(h, option, *number, reader);
  if (const Word* word = std::get_if<Word>(&option.value); word && h.valid == ValidNumbers::kChoice) {
    const auto found = std::find(h.choices.begin(), h.choices.end(), word->text);
    if (found != h.choices.end()) return static_cast<double>(found - h.choices.begin());
  }
  const bool is_word = h.valid == ValidNumbers::kFlag || h.valid == ValidNumbers::kChoice;
  reader.fail_at(option.column, concat("'", option.key.text, "' is ", is_word ? describe(h) : "a number"));
}

// Names by which options are set: hyper-parameters, and tuples in the place of their members.
std::vector<std::string> option_names(const OptimizerRow& row) {
  std::vector<std::string> names;
  for (const Hyperparameter& h : row.hyperparameters) {
    const std::string name = h.tuple ? h.tuple : h.key;
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
  return text;
}

[[noreturn]] void fail_unknown(const OptimizerRow& row, const Option& option, const ExpressionReader& reader) {
  const std::vector<std::string> names = option_names(row);
  std::vector<std::string> known = names;
  for (const Hyperparameter& h : row.hyperparameters) {
    if (h.tuple) known.emplace_back(h.key);
  }
  reader.fail_at(option.key.column, concat(row.name, " has no option '", option.key.text, "'; it has ", joined(names),
                                           did_you_mean(option.key.text, known)));
}

size_t place_of(const OptimizerRow& row, std::string_view key) {
  const Hyperparameters& all = row.hyperparameters;
  const auto found = std::find_if(all.begin(), all.end(), [&](const Hyperparameter& h) { return key == h.key; });
  return static_cast<size_t>(found - all.begin());
}

OptimizerSpec defaults(const OptimizerRow& row) {
  OptimizerSpec spec{&row, {}};
  for (const Hyperparameter& h : row.hyperparameters) spec.values.push_back(h.otherwise);
  return spec;
}

std::string value_text(const Hyperparameter& h, double value) {
  if (h.valid == ValidNumbers::kFlag) return value != 0 ? "true" : "false";
  return h.valid == ValidNumbers::kChoice ? h.choices[static_cast<size_t>(value)] : number_text(value);
}

}  // namespace

bool OptimizerSpec::has(std::string_view key) const { return place_of(*row, key) < values.size(); }

double OptimizerSpec::operator[](std::string_view key) const {
  if (!has(key)) fail(row->name, " has no hyper-parameter ", std::string(key));
  return values[place_of(*row, key)];
}

void OptimizerSpec::set(const Option& option, const ExpressionReader& reader) {
  const Hyperparameters& all = row->hyperparameters;
  const std::string& key = option.key.text;
  if (const size_t i = place_of(*row, key); i < all.size()) {
    values[i] = read_value(all[i], option, reader);
    return;
  }
  std::vector<size_t> members;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].tuple && key == all[i].tuple) members.push_back(i);
  }
  if (members.empty()) fail_unknown(*row, option, reader);
  const auto* tuple = std::get_if<NumberTuple>(&option.value);
  if (!tuple || tuple->numbers.size() != members.size()) {
    std::vector<std::string> example;
    for (const size_t i : members) example.push_back(number_text(all[i].otherwise));
    reader.fail_at(option.column, concat(key, " are ", members.size() == 2 ? "two" : concat(members.size()),
                                         " numbers: ", key, "=(", joined(example), ")"));
  }
  for (size_t k = 0; k < members.size(); ++k)
    values[members[k]] = value_of(all[members[k]], option, tuple->numbers[k], reader);
}

OptimizerSpec OptimizerSpec::of(const Value& weight) const {
  if (!row->takes || row->takes(*this, weight)) return *this;
  OptimizerSpec rest = defaults(*find_optimizer(row->rest));
  for (size_t i = 0; i < rest.values.size(); ++i) {
    const std::string key = rest.row->hyperparameters[i].key, own = concat(row->rest, "_", key);
    if (has(own) || has(key)) rest.values[i] = (*this)[has(own) ? own : key];
  }
  return rest;
}

OptimizerSpec parse_optimizer(const std::string& text) {
  ExpressionReader reader("--optimizer", text);
  std::vector<std::string> names;
  for (const OptimizerRow& row : optimizer_rows()) names.emplace_back(row.name);
  const Word name = reader.word("the name of an optimizer");
  const OptimizerRow* row = find_optimizer(name.text);
  if (!row) {
    reader.fail_at(name.column, concat("there is no optimizer '", name.text, "'; there is ", joined(names),
                                       did_you_mean(name.text, names)));
  }
  OptimizerSpec spec = defaults(*row);
  const Arguments arguments = read_arguments(&reader);
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  if (!arguments.names.empty()) {
    const Word& first = arguments.names[0];
    reader.fail_at(first.column, concat("'", first.text, "' has no value; write ", first.text, "=..."));
  }
  for (const Option& option : arguments.options) spec.set(option, reader);
  if (const std::string conflict = spec.conflict(); !conflict.empty()) reader.fail_at(name.column, conflict);
  return spec;
}

std::string to_string(const OptimizerSpec& spec) {
  std::vector<std::string> options;
  const Hyperparameters& all = spec.row->hyperparameters;
  for (size_t i = 0; i < all.size(); ++i) {
    const Hyperparameter& h = all[i];
    const bool word = h.valid == ValidNumbers::kFlag || h.valid == ValidNumbers::kChoice;
    if (word && spec.values[i] == h.otherwise) continue;
    const std::string value = value_text(h, spec.values[i]);
    const auto shares_tuple = [&](size_t with) {
      return h.tuple && with < all.size() && all[with].tuple && std::string_view(h.tuple) == all[with].tuple;
    };
    if (i > 0 && shares_tuple(i - 1)) {
      options.back() += ", " + value + (shares_tuple(i + 1) ? "" : ")");
    } else {
      options.push_back(h.tuple ? concat(h.tuple, "=(", value) : concat(h.key, "=", value));
    }
  }
  return concat(spec.row->name, "(", joined(options), ")");
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerRow& row : optimizer_rows()) names.emplace_back(row.name);
  return names;
}

std::string describe_optimizers() {
  std::vector<std::string> texts;
  for (const OptimizerRow& row : optimizer_rows())
    texts.push_back(concat(row.name, "(", joined(option_names(row)), ")"));
  return joined(texts);
}

}  // namespace onnx_train
