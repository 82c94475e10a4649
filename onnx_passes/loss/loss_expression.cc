#include "onnx_passes/loss/loss_expression.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

struct Signature {
  const char* loss;
  std::vector<std::string> options;
};

const std::vector<Signature>& signatures() {
  static const std::vector<Signature> all = {
      {"cross_entropy", {"axis", "ignore_index", "label_smoothing", "weight", "probabilities", "reduction"}},
      {"nll", {"axis", "ignore_index", "weight", "reduction"}},
      {"bce_with_logits", {"weight", "pos_weight", "reduction"}},
      {"mse", {"reduction"}},
      {"l1", {"reduction"}},
      {"huber", {"delta", "reduction"}},
  };
  return all;
}

const Signature* find_signature(const std::string& loss) {
  for (const Signature& s : signatures()) {
    if (loss == s.loss) return &s;
  }
  return nullptr;
}

bool wants_name(const std::string& option) { return option == "weight" || option == "pos_weight"; }

void check_option(const ExpressionReader& reader, const Signature& signature, const Option& option) {
  const std::string& key = option.key.text;
  if (std::find(signature.options.begin(), signature.options.end(), key) == signature.options.end()) {
    std::string known;
    for (const std::string& o : signature.options) known += (known.empty() ? "" : ", ") + o;
    reader.fail_at(option.key.column, concat(signature.loss, " has no option '", key, "'; it has ", known,
                                             did_you_mean(key, signature.options)));
  }
  const Word* word = std::get_if<Word>(&option.value);
  if (key == "reduction") {
    if (word && (word->text == "mean" || word->text == "sum")) return;
    reader.fail_at(option.column, "the reduction is mean or sum");
  }
  if (wants_name(key) != (word != nullptr) || std::holds_alternative<std::pair<double, double>>(option.value)) {
    reader.fail_at(option.column, concat("'", key, "' is ", wants_name(key) ? "the name of a tensor" : "a number"));
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
  const Signature* signature = term.loss.quoted ? nullptr : find_signature(term.loss.text);
  term.is_output = !signature;
  if (!reader->at('(')) return term;
  if (!signature) {
    std::string known;
    for (const std::string& name : loss_names()) known += (known.empty() ? "" : ", ") + name;
    reader->fail_at(term.loss.column, concat("there is no loss '", term.loss.text, "'; there is ", known,
                                             did_you_mean(term.loss.text, loss_names())));
  }
  term.arguments = read_arguments(reader);
  if (term.arguments.names.size() > 2) {
    reader->fail_at(term.arguments.names[2].column, concat(signature->loss, " takes a prediction and a target"));
  }
  for (const Option& option : term.arguments.options) check_option(*reader, *signature, option);
  return term;
}

}  // namespace

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
  for (const Signature& s : signatures()) names.push_back(s.loss);
  return names;
}

}  // namespace onnx_train
