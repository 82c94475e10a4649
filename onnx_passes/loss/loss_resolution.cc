#include "onnx_passes/loss/loss_resolution.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/missing.h"

namespace onnx_train {
namespace {

bool is_class_loss(const LossTerm& term) { return term.loss.text == "cross_entropy" || term.loss.text == "nll"; }

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
    check_numbers();
    auto& names = term_.arguments.names;
    if (names.empty()) names.push_back({first_float_output(), false, term_.loss.column});
    const Value& prediction = *find(names[0], "a value of the model");
    if (!is_float(prediction.dtype())) {
      reader_.fail_at(names[0].column, concat("the prediction '", names[0].text, "' is ", to_string(prediction.type()),
                                              "; it must be a float tensor"));
    }
    if (!prediction.has_rank()) {
      reader_.fail_at(names[0].column,
                      concat("the rank of '", names[0].text, "' is not known; ", unknown_rank_advice(prediction)));
    }
    if (is_class_loss(term_)) resolve_axis(prediction);
  }

 private:
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

  void check_number(const char* key, bool (*allowed)(double), const char* what) {
    const Option* option = find_option(term_, key);
    if (option && !allowed(std::get<double>(option->value))) {
      reader_.fail_at(option->column, concat("'", key, "' must be ", what));
    }
  }
  void check_numbers() {
    check_number(
        "label_smoothing", [](double x) { return x >= 0 && x <= 1; }, "from 0 to 1");
    check_number(
        "delta", [](double x) { return x > 0; }, "greater than 0");
    const auto whole = [](double x) { return x == std::floor(x) && std::abs(x) < 1e15; };
    check_number("ignore_index", whole, "a whole number");
    check_number("axis", whole, "a whole number");
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
      check(term.arguments.names[1], target_of(term), term);
      for (const Option& option : term.arguments.options) {
        const Word* name = std::get_if<Word>(&option.value);
        if (name && option.key.text != "reduction") check(*name, weight_of(term, option.key.text), term);
      }
    }
  }

 private:
  const TensorType& prediction_type(const LossTerm& term) const {
    return graph_.find(prediction_of(term).text)->type();
  }

  Wanted target_of(const LossTerm& term) const {
    TensorType type = prediction_type(term);
    if (!is_class_loss(term)) {
      return {"target", type, concat(term.loss.text, " compares both element by element"), false, true, true};
    }
    const bool may_be_probabilities = term.loss.text == "cross_entropy";
    const bool probabilities = integer_of(term, "probabilities", 0) != 0;
    const Value* known = graph_.find(term.arguments.names.size() > 1 ? term.arguments.names[1].text : "");
    if (probabilities || (may_be_probabilities && known && is_float(known->dtype()))) {
      return {"target", type, "probabilities are floats of the prediction's shape", false, false, true};
    }
    type.dtype = DType::kInt64;
    type.dims->erase(type.dims->begin() + integer_of(term, "axis", 1));
    return {"target", type, "class indices are integers, without the class axis", false, true, false};
  }

  Wanted weight_of(const LossTerm& term, const std::string& key) const {
    TensorType type = prediction_type(term);
    if (is_class_loss(term)) {
      type.dims = Dims{(*type.dims)[static_cast<size_t>(integer_of(term, "axis", 1))]};
      return {"weight", type, "it has one float for each class", false, false, true};
    }
    return {key == "weight" ? "weight" : "pos_weight", type, "it must broadcast to the prediction", true, false, true};
  }

  // The type of the input for a name that the model does not have: the last axis for pos_weight, otherwise the full
  // type.
  static TensorType new_type(const Wanted& wanted) {
    TensorType type = wanted.type;
    if (std::string(wanted.what) == "pos_weight" && type.rank() > 1) type.dims = Dims{type.dims->back()};
    return type;
  }

  // `labels` if all open targets have one type, else `labels_<prediction>`.
  void name_targets() {
    std::vector<LossTerm*> open;
    for (LossTerm& term : terms_) {
      if (!term.is_output && term.arguments.names.size() == 1) open.push_back(&term);
    }
    const bool share = std::all_of(open.begin(), open.end(), [&](const LossTerm* term) {
      return target_of(*term).type == target_of(*open.front()).type;
    });
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
    return concat("name the target: ", term.loss.text, "(", quoted_if_needed(prediction_of(term).text), ", my_labels)");
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
