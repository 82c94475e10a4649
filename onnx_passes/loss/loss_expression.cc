#include "onnx_passes/loss/loss_expression.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss_table.h"

namespace onnx_train {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The forms that the value of an option may have.
struct Forms {
  bool number, name, list;
  const char* text;  // "'weight' is ..."
};

Forms forms_of(OptionKind kind) {
  switch (kind) {
    case OptionKind::kNumber: return {true, false, false, "a number"};
    case OptionKind::kNumberOrValue: return {true, true, false, "a number or the name of a scalar"};
    case OptionKind::kClassWeight:
    case OptionKind::kChannelWeight: return {false, true, true, "the name of a tensor"};
    default: return {false, true, false, "the name of a tensor"};
  }
}

void check_reduction(const ExpressionReader& reader, const Option& option, bool batchmean) {
  const Word* word = std::get_if<Word>(&option.value);
  if (word && (word->text == "mean" || word->text == "sum" || (batchmean && word->text == "batchmean"))) return;
  reader.fail_at(option.column, batchmean ? "the reduction is mean, sum or batchmean" : "the reduction is mean or sum");
}

void check_choice(const ExpressionReader& reader, const LossOption& known, const Option& option) {
  const Word* word = std::get_if<Word>(&option.value);
  if (word && std::ranges::count(known.words, word->text) > 0) return;
  reader.fail_at(option.column, concat("'", known.name, "' is one of ", joined(known.words)));
}

void check_option(const ExpressionReader& reader, const LossRow& row, const Option& option) {
  const std::string& key = option.key.text;
  const LossOption* known = find_option(row, key);
  if (!known) {
    std::vector<std::string> names;
    for (const LossOption& o : row.options) names.push_back(o.name);
    reader.fail_at(option.key.column,
                   concat(row.name, " has no option '", key, "'; it has ", joined(names), did_you_mean(key, names)));
  }
  const bool batchmean = known->kind == OptionKind::kReductionBatch;
  if (batchmean || known->kind == OptionKind::kReduction) return check_reduction(reader, option, batchmean);
  if (known->kind == OptionKind::kChoice) return check_choice(reader, *known, option);
  const Forms forms = forms_of(known->kind);
  const double* number = std::get_if<double>(&option.value);
  const bool fits = number ? forms.number
                    : std::holds_alternative<Word>(option.value)
                        ? forms.name
                        : forms.list && std::holds_alternative<std::vector<double>>(option.value);
  if (!fits)
    reader.fail_at(option.column, concat("'", key, "' is ", forms.text, forms.list ? " or a list: [1, 2]" : ""));
  if (number && known->range.holds && !known->range.holds(*number)) {
    reader.fail_at(option.column, concat("'", key, "' must be ", known->range.text));
  }
}

LossTerm read_term(ExpressionReader* reader, double sign) {
  LossTerm term;
  term.weight = sign;
  if (reader->at_number()) {
    term.weight *= reader->number();
    reader->expect('*', "between a number and a loss");
  }
  term.loss = reader->word("a loss or an output of the model");
  term.row = term.loss.quoted ? nullptr : find_loss(term.loss.text);
  term.is_output = !term.row;
  if (reader->at('(') && !term.row) {
    reader->fail_at(term.loss.column,
                    concat("there is no loss '", term.loss.text, "'; there is ", joined(loss_names()),
                           did_you_mean(term.loss.text, loss_names())),
                    ErrorCode::kUnknownLoss);
  }
  read_call(reader, &term);
  return term;
}

}  // namespace

void read_call(ExpressionReader* reader, LossTerm* term) {
  if (!reader->at('(')) return;
  Arguments& arguments = term->arguments;
  arguments = read_arguments(reader);
  const size_t most = term->row->arguments.size();
  if (arguments.names.size() > most) {
    reader->fail_at(arguments.names[most].column, concat(term->row->name, " takes ", arguments_text(*term->row)));
  }
  for (const Option& option : arguments.options) {
    check_option(*reader, *term->row, option);
    if (find_option(*term, option.key.text) != &option) {
      reader->fail_at(option.key.column, concat("'", option.key.text, "' is given twice"));
    }
  }
}

std::vector<LossTerm> parse_loss(const std::string& text) {
  ExpressionReader reader("--loss", text);
  std::vector<LossTerm> terms;
  double sign = reader.take('-') ? -1 : 1;
  while (true) {
    terms.push_back(read_term(&reader, sign));
    if (reader.at_end()) return terms;
    sign = reader.take('-') ? -1 : 1;
    if (sign > 0) reader.expect('+', "between two losses");
  }
}

std::vector<std::string> loss_names() {
  std::vector<std::string> names;
  for (const LossRow& row : loss_rows()) names.push_back(row.name);
  return names;
}

const Option* find_option(const LossTerm& term, const std::string& key) {
  for (const Option& option : term.arguments.options) {
    if (option.key.text == key) return &option;
  }
  return nullptr;
}

double number_of(const LossTerm& term, const std::string& key) {
  if (const Option* option = find_option(term, key)) return std::get<double>(option->value);
  return find_option(*term.row, key)->otherwise;
}

int64_t integer_of(const LossTerm& term, const std::string& key) { return static_cast<int64_t>(number_of(term, key)); }

bool flag_of(const LossTerm& term, const std::string& key) { return number_of(term, key) != 0; }

std::string reduction_of(const LossTerm& term) {
  const Option* option = find_option(term, "reduction");
  return option ? std::get<Word>(option->value).text : "mean";
}

std::string choice_of(const LossTerm& term, const std::string& key) {
  const Option* option = find_option(term, key);
  return option ? std::get<Word>(option->value).text : find_option(*term.row, key)->words.front();
}

}  // namespace onnx_train
