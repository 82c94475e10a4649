#include "onnx_passes/loss/loss_resolution.h"

#include <algorithm>
#include <map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss_table.h"
#include "onnx_passes/loss/loss_terms.h"
#include "onnx_passes/operators/missing.h"

namespace onnx_train {
namespace {

const LossRow& row_of(const LossTerm& term) { return *find_loss(term.loss.text); }

const Word& prediction_of(const LossTerm& term) { return term.arguments.names[0]; }

// Fills in what a term leaves open about its prediction.
class Resolver {
 public:
  Resolver(LossTerm* term, const Graph& graph, const std::string& text)
      : term_(*term), graph_(graph), reader_("--loss", text) {}

  void run() {
    if (term_.is_output) {
      check_scalar(*find(term_.loss, "a loss or an output of the model"));
      return;
    }
    const LossRow& row = row_of(term_);
    auto& names = term_.arguments.names;
    const size_t predictions = num_predictions(row);
    if (names.empty() && predictions == 1) names.push_back({first_float_output(), false, term_.loss.column});
    if (names.size() < predictions) {
      reader_.fail_at(term_.loss.column, concat(row.name, " takes ", arguments_text(row), "; name the ", predictions,
                                                " predictions: ", row.name, "(", names_of_predictions(row), ")"));
    }
    for (size_t i = 0; i < predictions; ++i) check_prediction(names[i]);
    const Value& prediction = *graph_.find(names[0].text);
    check_rank(row, prediction);
    if (is_over_classes(row)) resolve_axis(prediction);
  }

 private:
  static std::string names_of_predictions(const LossRow& row) {
    std::string text;
    for (size_t i = 0; i < num_predictions(row); ++i) text += concat(i ? ", " : "", row.arguments[i].name);
    return text;
  }

  void check_prediction(const Word& name) {
    const Value& prediction = *find(name, "a value of the model");
    if (!is_float(prediction.dtype())) {
      reader_.fail_at(name.column, concat("the prediction '", name.text, "' is ", to_string(prediction.type()),
                                          "; it must be a float tensor"));
    }
    if (!prediction.has_rank()) {
      reader_.fail_at(name.column,
                      concat("the rank of '", name.text, "' is not known; ", unknown_rank_advice(prediction)));
    }
  }

  void check_rank(const LossRow& row, const Value& prediction) {
    const int64_t rank = prediction.rank(), least = find_option(term_, "sample_weight") ? batch_axis(term_) + 1 : 0;
    if (rank >= std::max(row.least_rank, least) && rank <= row.most_rank) return;
    const Word& name = prediction_of(term_);
    reader_.fail_at(name.column, concat("'", name.text, "' is ", to_string(prediction.type()), "; ",
                                        rank < row.least_rank || rank > row.most_rank
                                            ? concat(row.name, " needs ", row.least_rank,
                                                     row.most_rank > row.least_rank ? " axes or more" : " axes")
                                            : "without an axis for the samples there are no sample weights"));
  }

  const Value* find(const Word& word, const char* what) {
    if (const Value* value = graph_.find(word.text)) return value;
    std::vector<std::string> names;
    for (const Value* output : graph_.outputs()) names.push_back(output->name());
    const std::string similar = similar_names(word.text, term_.is_output ? with_losses(names) : names);
    std::string all;
    for (const std::string& name : names) all += concat(all.empty() ? "'" : ", '", name, "'");
    reader_.fail_at(word.column, concat("'", word.text, "' is not ", what, "; ",
                                        similar.empty() ? "the outputs are " : "did you mean ",
                                        similar.empty() ? all : similar + "?"));
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
      reader_.fail_at(term_.loss.column,
                      concat("'", value.name(), "' is ", to_string(type),
                             "; an output that is the loss must be one float, otherwise name a loss: mse(...)"));
    }
  }

  std::string first_float_output() {
    for (const Value* output : graph_.outputs()) {
      if (is_float(output->dtype())) return output->name();
    }
    reader_.fail_at(term_.loss.column, "the model has no float output; name the value to use in parentheses");
  }

  void resolve_axis(const Value& prediction) {
    const Word& name = term_.arguments.names[0];
    const int64_t rank = prediction.rank();
    const Option* given = find_option(term_, "axis");
    if (!given && rank < 2) {
      reader_.fail_at(name.column, concat("'", name.text, "' is ", to_string(prediction.type()),
                                          "; a loss over classes needs an axis for them besides the batch"));
    }
    const int64_t axis = given ? static_cast<int64_t>(std::get<double>(given->value)) : rank == 3 ? 2 : 1;
    if (axis < -rank || axis >= rank) {
      reader_.fail_at(given->column,
                      concat("axis ", axis, " is outside '", name.text, "', ", to_string(prediction.type())));
    }
    if (normalize_axis(axis, rank) == 0 && find_option(term_, "sample_weight")) {
      reader_.fail_at(given->column, "with sample weights, axis 0 is that of the samples");
    }
    std::erase_if(term_.arguments.options, [](const Option& o) { return o.key.text == "axis"; });
    const auto from_start = static_cast<double>(normalize_axis(axis, rank));
    auto& options = term_.arguments.options;
    options.insert(options.begin(), Option{{"axis", false, 0}, from_start, 0});
  }

  LossTerm& term_;
  const Graph& graph_;
  ExpressionReader reader_;
};

// ---- Targets and weights

// The requirements of a term on a tensor that it names besides the prediction.
struct Wanted {
  const char* what;  // "target", "weight"
  TensorType type;   // of the new input, if the model has no value of that name
  std::string why;   // end of a message: "mse compares both element by element"
  bool broadcasts;   // the tensor may have fewer axes, or sizes of 1
  bool integers;     // the tensor may hold integers or bools
  bool floats;       // ... or floats
};

bool can_be(const Dim& a, const Dim& b) { return !a.known() || !b.known() || a == b; }

bool fits(const Dims& found, const Wanted& wanted) {
  const Dims& dims = *wanted.type.dims;
  if (wanted.broadcasts ? found.size() > dims.size() : found.size() != dims.size()) return false;
  const size_t missing = dims.size() - found.size();
  for (size_t i = 0; i < found.size(); ++i) {
    if (!(wanted.broadcasts && found[i] == Dim(1)) && !can_be(found[i], dims[missing + i])) return false;
  }
  return true;
}

// Names the targets that terms leave open, and checks the shape of every target and weight.
class Targets {
 public:
  Targets(std::vector<LossTerm>* terms, const Graph& graph, const std::string& text)
      : terms_(*terms), graph_(graph), reader_("--loss", text) {}

  void run() {
    name_targets();
    for (const LossTerm& term : terms_) {
      if (term.is_output) continue;
      for (size_t i = 1; i < term.arguments.names.size(); ++i) {
        check(term.arguments.names[i], argument_of(term, i), term);
      }
      for (const Option& option : term.arguments.options) check_weight(option, term);
    }
  }

 private:
  const TensorType& prediction_type(const LossTerm& term) const {
    return graph_.find(prediction_of(term).text)->type();
  }

  Wanted argument_of(const LossTerm& term, size_t i) const {
    const LossArgument& argument = row_of(term).arguments[i];
    const std::vector<Word>& names = term.arguments.names;
    const std::string name = i < names.size() ? names[i].text : "";
    const bool floats = holds_floats(term, i, graph_.find(name));
    TensorType type = prediction_type(term);
    type.dims = chosen(*type.dims, argument_axes(term, i, type.rank(), floats), name);
    const bool prediction = argument.kind == ArgumentKind::kPrediction;
    const char* what =
        prediction || row_of(term).arguments.size() > num_predictions(row_of(term)) + 1 ? argument.name : "target";
    if (argument.kind == ArgumentKind::kIndices && !floats) type.dtype = DType::kInt64;
    Wanted wanted = {what, type, "", false, !prediction, true};
    if (floats && argument.floats_by_type) {
      wanted.why = "probabilities are floats of the prediction's shape";
      wanted.integers = false;
      return wanted;
    }
    switch (argument.shape) {
      case ArgumentShape::kClasses:
        if (floats) break;
        wanted.why = "class indices are integers, without the class axis";
        wanted.floats = false;
        return wanted;
      case ArgumentShape::kBroadcasts:
        wanted.broadcasts = true;
        wanted.why = "it must broadcast to the prediction";
        return wanted;
      case ArgumentShape::kRows: wanted.why = "it has one number for each vector along the last axis"; return wanted;
      case ArgumentShape::kSamples:
      case ArgumentShape::kSequences:
        wanted.why = "it has integers for each sample";
        wanted.floats = false;
        return wanted;
      default: break;
    }
    wanted.why = concat(term.loss.text, " compares both element by element");
    return wanted;
  }

  void check_weight(const Option& option, const LossTerm& term) {
    const OptionKind kind = find_option(row_of(term), option.key.text)->kind;
    const bool over_classes = kind == OptionKind::kClassWeight;
    if (const auto* list = std::get_if<std::vector<double>>(&option.value)) {
      const Dim& classes = (*prediction_type(term).dims)[static_cast<size_t>(integer_of(term, "axis"))];
      if (!classes.known() || classes.value() == static_cast<int64_t>(list->size())) return;
      reader_.fail_at(option.column,
                      concat("the weight has ", list->size(), " numbers, and '", prediction_of(term).text, "', ",
                             onnx_train::to_string(prediction_type(term)), ", has ", classes.value(),
                             " classes along axis ", integer_of(term, "axis")));
    }
    const Word* name = std::get_if<Word>(&option.value);
    if (!name || kind == OptionKind::kReduction || kind == OptionKind::kReductionBatch) return;
    TensorType type = prediction_type(term);
    const char* key = find_option(row_of(term), option.key.text)->name;
    if (kind == OptionKind::kNumberOrValue) {
      type.dims = Dims{};
      return check(*name, {key, type, "it is one float", false, false, true}, term);
    }
    if (over_classes || kind == OptionKind::kSampleWeight) {
      const int64_t axis = over_classes ? integer_of(term, "axis") : batch_axis(term);
      type.dims = Dims{(*type.dims)[static_cast<size_t>(axis)]};
      return check(*name,
                   {key, type, over_classes ? "it has one float for each class" : "it has one float for each sample",
                    false, false, true},
                   term);
    }
    check(*name, {key, type, "it must broadcast to the prediction", true, false, true}, term);
  }

  // The type of the input for a name that the model does not have: the last axis for pos_weight, otherwise the full
  // type.
  static TensorType new_type(const Wanted& wanted) {
    TensorType type = wanted.type;
    if (std::string(wanted.what) == "pos_weight" && type.rank() > 1) type.dims = Dims{type.dims->back()};
    return type;
  }

  // The one target that a loss has is `labels` if all that are open have one type, else `labels_<prediction>`. Several
  // targets have the names of the row's arguments.
  void name_targets() {
    std::vector<LossTerm*> open;
    for (LossTerm& term : terms_) {
      if (term.is_output) continue;
      const LossRow& row = row_of(term);
      const size_t all = row.arguments.size(), predictions = num_predictions(row);
      std::vector<Word>& names = term.arguments.names;
      if (all == predictions + 1 && names.size() == predictions) open.push_back(&term);
      for (size_t i = names.size(); all > predictions + 1 && i < all; ++i) {
        names.push_back({free_input_name(row.arguments[i].name), false, term.loss.column});
      }
    }
    const auto type_of = [&](const LossTerm* term) {
      return argument_of(*term, row_of(*term).arguments.size() - 1).type;
    };
    const bool share = std::ranges::all_of(open, [&](const LossTerm* t) { return type_of(t) == type_of(open[0]); });
    for (LossTerm* term : open) {
      const std::string name = free_input_name(share ? "labels" : "labels_" + prediction_of(*term).text);
      term->arguments.names.push_back({name, false, term->loss.column});
    }
  }

  // The first of `name`, `name_2`, `name_3`, ... that is an input of the model or unused: the model's own values keep
  // their names.
  std::string free_input_name(const std::string& name) const {
    std::string candidate = name;
    for (int i = 2;; ++i) {
      const Value* taken = graph_.find(candidate);
      if (!taken || graph_.is_input(taken)) return candidate;
      candidate = concat(name, "_", i);
    }
  }

  static std::string way_out(const LossTerm& term) {
    std::string names;
    for (size_t i = 0; i < num_predictions(row_of(term)); ++i) {
      names += quoted_if_needed(term.arguments.names[i].text) + ", ";
    }
    return concat("name the target: ", term.loss.text, "(", names, "my_labels)");
  }

  void check(const Word& name, const Wanted& wanted, const LossTerm& term) {
    if (const Value* value = graph_.find(name.text)) return check_value(name, *value, wanted, term);
    const TensorType type = new_type(wanted);
    const auto [known, added] = added_.try_emplace(name.text, type);
    if (added || known->second == type) return;
    reader_.fail_at(name.column, concat("'", name.text, "' is ", onnx_train::to_string(known->second),
                                        " for an earlier term, and would be ", onnx_train::to_string(type),
                                        " for this one; give each its own name, ", way_out(term)));
  }

  void check_value(const Word& name, const Value& value, const Wanted& wanted, const LossTerm& term) {
    const TensorType& type = value.type();
    const bool right_kind = is_float(type.dtype)
                                ? wanted.floats
                                : wanted.integers && (is_integer(type.dtype) || type.dtype == DType::kBool);
    const std::string prediction =
        concat("the prediction '", prediction_of(term).text, "' is ", onnx_train::to_string(prediction_type(term)));
    if (!type.has_rank()) {
      reader_.fail_at(name.column, concat("the rank of the ", wanted.what, " '", name.text, "' is not known, ",
                                          prediction, "; ", unknown_rank_advice(value)));
    }
    if (right_kind && fits(*type.dims, wanted)) return;
    reader_.fail_at(name.column,
                    concat("the ", wanted.what, " '", name.text, "' is ", onnx_train::to_string(type), ", ", prediction,
                           "; ", wanted.why, ": reshape it in the model to ", onnx_train::to_string(wanted.type),
                           ", or take a name that the model does not have: it becomes an input of that type"));
  }

  std::vector<LossTerm>& terms_;
  const Graph& graph_;
  ExpressionReader reader_;
  std::map<std::string, TensorType> added_;  // inputs that the loss adds
};

}  // namespace

void resolve(std::vector<LossTerm>* terms, const Graph& graph, const std::string& text) {
  for (LossTerm& term : *terms) Resolver(&term, graph, text).run();
  Targets(terms, graph, text).run();
}

}  // namespace onnx_train
