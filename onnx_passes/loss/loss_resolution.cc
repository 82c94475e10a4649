#include "onnx_passes/loss/loss_resolution.h"

#include <algorithm>

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss_table.h"
#include "onnx_passes/loss/loss_targets.h"
#include "onnx_passes/loss/probabilities.h"

namespace onnx_train {
namespace {

const LossRow& row_of(const LossTerm& term) { return *term.row; }

const Word& first_name(const LossTerm& term) { return term.arguments.names[0]; }

// Fills in what a term leaves open about its prediction.
class Resolver {
 public:
  Resolver(LossTerm* term, const LossScope& scope, const ExpressionReader& reader)
      : term_(*term), scope_(scope), graph_(scope.graph()), reader_(reader) {}

  void run() {
    if (term_.is_output) {
      check_scalar(*find(term_.loss, "a loss or an output of the model"));
      return;
    }
    const LossRow& row = row_of(term_);
    auto& names = term_.arguments.names;
    const size_t predictions = num_predictions(row);
    if (names.empty() && predictions == 1) names.push_back({default_name(), false, term_.loss.column});
    if (names.size() < predictions) {
      misfit(term_.loss.column, concat(row.name, " takes ", arguments_text(row), "; name the ", predictions,
                                       " predictions: ", row.name, "(", names_of_predictions(row), ")"));
    }
    for (size_t i = 0; i < predictions; ++i) check_prediction(names[i]);
    const Value& prediction = *scope_.find(names[0].text);
    check_rank(row, prediction);
    if (is_over_classes(row)) resolve_axis(prediction);
  }

 private:
  [[noreturn]] void misfit(size_t column, const std::string& reason) const {
    reader_.fail_at(column, reason, ErrorCode::kLossMisfit);
  }

  static std::string names_of_predictions(const LossRow& row) {
    std::string text;
    for (size_t i = 0; i < num_predictions(row); ++i) text += concat(i ? ", " : "", row.arguments[i].name);
    return text;
  }

  void check_prediction(const Word& name) {
    const Value& prediction = *find(name, "a value of the model");
    if (!is_float(prediction.dtype())) {
      misfit(name.column, concat("the prediction '", name.text, "' is ", to_string(prediction.type()),
                                 "; it must be a float tensor"));
    }
    if (!prediction.has_rank()) {
      misfit(name.column, concat("the rank of '", name.text, "' is not known; ", unknown_rank_advice(prediction)));
    }
  }

  void check_rank(const LossRow& row, const Value& prediction) {
    const int64_t rank = prediction.rank();
    const bool of_samples = find_option(term_, "sample_weight") || reduction_of(term_) == "batchmean";
    const int64_t least = of_samples ? batch_axis(term_) + 1 : 0;
    if (rank >= std::max(row.least_rank, least) && rank <= row.most_rank) return;
    const Word& name = first_name(term_);
    misfit(name.column, concat("'", name.text, "' is ", to_string(prediction.type()), "; ",
                               rank < row.least_rank || rank > row.most_rank
                                   ? concat(row.name, " needs ", row.least_rank,
                                            row.most_rank > row.least_rank ? " axes or more" : " axes")
                                   : "it has no axis for the samples"));
  }

  const Value* find(const Word& word, const char* what) {
    if (const Value* value = scope_.find(word.text)) return value;
    std::vector<std::string> names;
    for (const Value* output : graph_.outputs()) names.push_back(output->name());
    const std::string similar = similar_names(word.text, term_.is_output ? with_losses(names) : names);
    std::string all;
    for (const std::string& name : names) all += concat(all.empty() ? "'" : ", '", name, "'");
    reader_.fail_at(
        word.column,
        concat("'", word.text, "' is not ", what, "; ", similar.empty() ? "the outputs are " : "did you mean ",
               similar.empty() ? all : similar + "?"),
        term_.is_output ? ErrorCode::kUnknownLoss : ErrorCode::kLossMisfit);
  }
  static std::vector<std::string> with_losses(std::vector<std::string> names) {
    for (const std::string& name : loss_names()) names.push_back(name);
    return names;
  }

  void check_scalar(const Value& value) {
    const TensorType& type = value.type();
    bool one_element = is_float(type.dtype);
    if (type.dims) {
      for (const Dim& d : *type.dims) one_element = one_element && d == Dim(1);
    }
    if (!one_element) {
      misfit(term_.loss.column,
             concat("'", value.name(), "' is ", to_string(type),
                    "; an output that is the loss must be one float, otherwise name a loss: mse(...)"));
    }
  }

  std::string default_name() {
    if (const Value* output = default_prediction(graph_)) return output->name();
    misfit(term_.loss.column, "the model has no float output; name the value to use in parentheses");
  }

  void resolve_axis(const Value& prediction) {
    const Word& name = term_.arguments.names[0];
    const int64_t rank = prediction.rank();
    const Option* given = find_option(term_, "axis");
    const bool yes_no =
        term_.arguments.names.size() > 1 && holds_floats(term_, 1, scope_.find(term_.arguments.names[1].text));
    if (!given && rank < 2 && yes_no) return;  // one class
    if (!given && rank < 2) {
      misfit(name.column, concat("'", name.text, "' is ", to_string(prediction.type()),
                                 "; a loss over classes needs an axis for them besides the batch"));
    }
    const int64_t axis = given ? static_cast<int64_t>(std::get<double>(given->value)) : rank == 3 ? 2 : 1;
    if (axis < -rank || axis >= rank) {
      misfit(given->column, concat("axis ", axis, " is outside '", name.text, "', ", to_string(prediction.type())));
    }
    if (normalize_axis(axis, rank) == 0 && find_option(term_, "sample_weight")) {
      misfit(given->column, "with sample weights, axis 0 is that of the samples");
    }
    std::erase_if(term_.arguments.options, [](const Option& o) { return o.key.text == "axis"; });
    const auto from_start = static_cast<double>(normalize_axis(axis, rank));
    auto& options = term_.arguments.options;
    options.insert(options.begin(), Option{{"axis", false, 0}, from_start, 0});
  }

  LossTerm& term_;
  const LossScope& scope_;
  const Graph& graph_;
  ExpressionReader reader_;
};

}  // namespace

void resolve(std::vector<LossTerm>* terms, const LossScope& scope, const ExpressionReader& reader) {
  for (LossTerm& term : *terms) Resolver(&term, scope, reader).run();
  resolve_targets(terms, scope, reader);
}

}  // namespace onnx_train
