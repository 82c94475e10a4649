#include "onnx_passes/loss/loss_targets.h"

#include <algorithm>
#include <map>

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss_table.h"
#include "onnx_passes/loss/loss_terms.h"

namespace onnx_train {
namespace {

const LossRow& target_row(const LossTerm& term) { return *term.row; }

const Word& first_prediction(const LossTerm& term) { return term.arguments.names[0]; }

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
  Targets(std::vector<LossTerm>* terms, const LossScope& scope, const ExpressionReader& reader)
      : terms_(*terms), scope_(scope), graph_(scope.graph()), reader_(reader) {}

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
  [[noreturn]] void misfit(size_t column, const std::string& reason) const {
    reader_.fail_at(column, reason, ErrorCode::kLossMisfit);
  }

  const TensorType& prediction_type(const LossTerm& term) const {
    return scope_.find(first_prediction(term).text)->type();
  }

  Wanted argument_of(const LossTerm& term, size_t i) const {
    const LossArgument& argument = target_row(term).arguments[i];
    const std::vector<Word>& names = term.arguments.names;
    const std::string name = i < names.size() ? names[i].text : "";
    const bool floats = holds_floats(term, i, scope_.find(name));
    TensorType type = prediction_type(term);
    type.dims = chosen(*type.dims, argument_axes(term, i, type.rank(), floats), name);
    const bool prediction = argument.kind == ArgumentKind::kPrediction;
    const char* what = prediction || target_row(term).arguments.size() > num_predictions(target_row(term)) + 1
                           ? argument.name
                           : "target";
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
    const OptionKind kind = find_option(target_row(term), option.key.text)->kind;
    const bool over_classes = kind == OptionKind::kClassWeight;
    if (const auto* list = std::get_if<std::vector<double>>(&option.value)) {
      const int64_t axis = over_classes ? integer_of(term, "axis") : prediction_type(term).rank() - 1;
      if (axis < 0) misfit(option.column, "the prediction has no axis for a list of weights");
      const Dim& classes = (*prediction_type(term).dims)[static_cast<size_t>(axis)];
      if (!classes.known() || classes.value() == static_cast<int64_t>(list->size())) return;
      misfit(option.column, concat("the weight has ", list->size(), " numbers, and '", first_prediction(term).text,
                                   "', ", onnx_train::to_string(prediction_type(term)), ", has ", classes.value(),
                                   over_classes ? " classes" : " elements", " along axis ", axis));
    }
    const Word* name = std::get_if<Word>(&option.value);
    if (!name || kind == OptionKind::kReduction || kind == OptionKind::kReductionBatch) return;
    TensorType type = prediction_type(term);
    const char* key = find_option(target_row(term), option.key.text)->name;
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
      const LossRow& row = target_row(term);
      const size_t all = row.arguments.size(), predictions = num_predictions(row);
      std::vector<Word>& names = term.arguments.names;
      if (all == predictions + 1 && names.size() == predictions) open.push_back(&term);
      for (size_t i = names.size(); all > predictions + 1 && i < all; ++i) {
        names.push_back({free_input_name(row.arguments[i].name), false, term.loss.column});
      }
    }
    const auto type_of = [&](const LossTerm* term) {
      return argument_of(*term, target_row(*term).arguments.size() - 1).type;
    };
    const bool share = std::ranges::all_of(open, [&](const LossTerm* t) { return type_of(t) == type_of(open[0]); });
    for (LossTerm* term : open) {
      const std::string name = free_input_name(share ? "labels" : "labels_" + first_prediction(*term).text);
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
    for (size_t i = 0; i < num_predictions(target_row(term)); ++i) {
      names += quoted_if_needed(term.arguments.names[i].text) + ", ";
    }
    return concat("name the target: ", term.loss.text, "(", names, "my_labels)");
  }

  void check(const Word& name, const Wanted& wanted, const LossTerm& term) {
    if (const Value* value = scope_.find(name.text)) return check_value(name, *value, wanted, term);
    if (scope_.is_of_teacher(name.text)) {
      misfit(name.column, concat("'", name.text, "' is not an output of the teacher"));
    }
    const TensorType type = new_type(wanted);
    const auto [known, added] = added_.try_emplace(name.text, type);
    if (added || known->second == type) return;
    misfit(name.column,
           concat("'", name.text, "' is ", onnx_train::to_string(known->second), " for an earlier term, and would be ",
                  onnx_train::to_string(type), " for this one; give each its own name, ", way_out(term)));
  }

  void check_value(const Word& name, const Value& value, const Wanted& wanted, const LossTerm& term) {
    const TensorType& type = value.type();
    const bool right_kind = is_float(type.dtype)
                                ? wanted.floats
                                : wanted.integers && (is_integer(type.dtype) || type.dtype == DType::kBool);
    const std::string prediction =
        concat("the prediction '", first_prediction(term).text, "' is ", onnx_train::to_string(prediction_type(term)));
    if (!type.has_rank()) {
      misfit(name.column, concat("the rank of the ", wanted.what, " '", name.text, "' is not known, ", prediction, "; ",
                                 unknown_rank_advice(value)));
    }
    if (right_kind && fits(*type.dims, wanted)) return;
    misfit(name.column,
           concat("the ", wanted.what, " '", name.text, "' is ", onnx_train::to_string(type), ", ", prediction, "; ",
                  wanted.why, ": reshape it in the model to ", onnx_train::to_string(wanted.type),
                  ", or take a name that the model does not have: it becomes an input of that type"));
  }

  std::vector<LossTerm>& terms_;
  const LossScope& scope_;
  const Graph& graph_;
  ExpressionReader reader_;
  std::map<std::string, TensorType> added_;  // inputs that the loss adds
};

}  // namespace

void resolve_targets(std::vector<LossTerm>* terms, const LossScope& scope, const ExpressionReader& reader) {
  Targets(terms, scope, reader).run();
}

}  // namespace onnx_train
