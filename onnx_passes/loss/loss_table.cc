#include "onnx_passes/loss/loss_table.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// What every loss has.
const std::vector<LossOption>& common_options() {
  static const std::vector<LossOption> options = {
      {"reduction", OptionKind::kReduction},
      {"sample_weight", OptionKind::kSampleWeight},
  };
  return options;
}

std::string option_text(const LossOption& option) {
  const std::string name = option.name;
  switch (option.kind) {
    case OptionKind::kNumber: {
      const bool flag = std::string_view(option.range.text) == kTrueOrFalse.text;
      if (name == "axis") return "axis=A";
      return concat(name, "=", flag ? (option.otherwise != 0 ? "true" : "false") : number_text(option.otherwise));
    }
    case OptionKind::kNumberOrValue: return concat(name, "=", number_text(option.otherwise));
    case OptionKind::kClassWeight: return concat(name, "=[..]");
    case OptionKind::kReduction: return "reduction=mean";
    case OptionKind::kReductionBatch: return "reduction=mean";
    case OptionKind::kChoice: return concat(name, "=", option.words.front());
    default: return concat(name, "=NAME");
  }
}

}  // namespace

const std::vector<LossRow>& loss_rows() {
  static const std::vector<LossRow> all = [] {
    std::vector<LossRow> rows;
    for (auto family :
         {class_losses, element_losses, distribution_losses, margin_losses, contrastive_losses, sequence_losses}) {
      for (LossRow& row : family()) {
        if (is_over_classes(row)) row.prediction = Prediction::kClasses;
        for (const LossOption& option : common_options()) {
          if (!find_option(row, option.name)) row.options.push_back(option);
        }
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }();
  return all;
}

const LossRow* find_loss(const std::string& name) {
  for (const LossRow& row : loss_rows()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

const LossOption* find_option(const LossRow& row, const std::string& name) {
  for (const LossOption& option : row.options) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

size_t num_predictions(const LossRow& row) {
  return static_cast<size_t>(
      std::ranges::count_if(row.arguments, [](const LossArgument& a) { return a.kind == ArgumentKind::kPrediction; }));
}

bool takes_logits(const LossRow& row) { return row.arguments[0].name == std::string_view("logits"); }

Prediction prediction_of(const LossTerm& term) {
  const bool yes_no = find_option(*term.row, "sigmoid") && flag_of(term, "sigmoid");
  return yes_no ? Prediction::kYesNo : term.row->prediction;
}

std::string arguments_text(const LossRow& row) {
  if (row.arguments.size() == 2 && num_predictions(row) == 1) return "a prediction and a target";
  std::string text;
  for (size_t i = 0; i < row.arguments.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 == row.arguments.size() ? " and " : ", ", row.arguments[i].name);
  }
  return text;
}

int64_t batch_axis(const LossTerm& term) { return find_option(*term.row, "time") ? 1 - integer_of(term, "time") : 0; }

bool holds_floats(const LossTerm& term, size_t i, const Value* value) {
  const LossArgument& argument = term.row->arguments[i];
  if (argument.kind != ArgumentKind::kIndices || !argument.floats_option) return false;
  return flag_of(term, argument.floats_option) || (argument.floats_by_type && value && is_float(value->dtype()));
}

bool holds_probabilities(const LossTerm& term, size_t i, const Value* value) {
  const ArgumentKind kind = term.row->arguments[i].kind;
  const bool floats = kind == ArgumentKind::kTarget || holds_floats(term, i, value);
  const Prediction prediction = prediction_of(term);
  return floats && kind != ArgumentKind::kPrediction &&
         (prediction == Prediction::kYesNo || prediction == Prediction::kClasses);
}

std::vector<int64_t> argument_axes(const LossTerm& term, size_t i, int64_t rank, bool floats) {
  const ArgumentShape shape = term.row->arguments[i].shape;
  if (shape == ArgumentShape::kSamples) return {batch_axis(term)};
  if (shape == ArgumentShape::kSequences) return {batch_axis(term), -1};
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < rank; ++axis) axes.push_back(axis);
  if (shape == ArgumentShape::kClasses && !floats) std::erase(axes, integer_of(term, "axis"));
  if (shape == ArgumentShape::kRows) axes.pop_back();
  return axes;
}

std::string loss_reference() {
  std::string text;
  for (const LossRow& row : loss_rows()) {
    text += reference_of(row, concat(row.formula, "\n\nMean over ", row.over, ". ", row.source, "."));
  }
  return text;
}

std::string reference_of(const LossRow& row, const std::string& definition) {
  std::string arguments;
  for (const LossArgument& a : row.arguments) arguments += concat(arguments.empty() ? "" : ", ", a.name);
  std::string options;
  for (const LossOption& o : row.options) {
    if (!*o.text) continue;
    arguments += ", " + option_text(o);
    options += concat("\n- `", o.name, "`: ", o.text);
    if (o.kind == OptionKind::kNumber && o.range.holds) options += concat(" (", o.range.text, ")");
  }
  return concat("### ", row.name, "\n\n`", row.name, "(", arguments, ")`\n\n", definition, "\n", options,
                options.empty() ? "" : "\n", "\n");
}

}  // namespace onnx_train
