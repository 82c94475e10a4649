#include "onnx_passes/passes/loss_terms.h"

#include <cmath>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// ---- Reading a term

const Option* find_option(const LossTerm& term, const std::string& key) {
  for (const Option& option : term.arguments.options) {
    if (option.key.text == key) return &option;
  }
  return nullptr;
}

double number(const LossTerm& term, const std::string& key, double otherwise) {
  const Option* option = find_option(term, key);
  return option ? std::get<double>(option->value) : otherwise;
}

int64_t integer(const LossTerm& term, const std::string& key, int64_t otherwise) {
  return static_cast<int64_t>(number(term, key, static_cast<double>(otherwise)));
}

std::string reduction(const LossTerm& term) {
  const Option* option = find_option(term, "reduction");
  return option ? std::get<Word>(option->value).text : "mean";
}

bool is_class_loss(const LossTerm& term) { return term.loss.text == "cross_entropy" || term.loss.text == "nll"; }

// ---- Resolving

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
      reader_.fail_at(names[0].column, concat("the rank of '", names[0].text,
                                              "' is not known; give the model's inputs shapes so that it can be "
                                              "inferred"));
    }
    if (names.size() == 1) names.push_back({default_target(), false, term_.loss.column});
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

  std::string default_target() {
    const std::string name = "labels";
    const Value* taken = graph_.find(name);
    if (taken && !graph_.is_input(taken)) {
      reader_.fail_at(term_.loss.column,
                      concat("the model has a value called '", name, "' already; name the target: ", term_.loss.text,
                             "(", quoted_if_needed(term_.arguments.names[0].text), ", my_", name, ")"));
    }
    return name;
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

std::string to_string(const Option& option) {
  std::string text = option.key.text + "=";
  if (const Word* word = std::get_if<Word>(&option.value)) return text + quoted_if_needed(word->text);
  return text + number_text(std::get<double>(option.value));
}

const Dims& dims_of(Var x) {
  x.rank();  // throws when it is not known
  return *x.type().dims;
}

Dims without(Dims dims, int64_t axis) {
  dims.erase(dims.begin() + axis);
  return dims;
}

Var reduced(const LossTerm& term, Var x) {
  return reduction(term) == "sum" ? sum_all(x) : x.builder().op("ReduceMean", {x}, {{"keepdims", 0}});
}

// Labels that the model has already must fit the prediction, as new ones do.
void check_labels(const LossTerm& term, Var prediction, Var labels) {
  if (labels.rank() == prediction.rank() - 1 && is_integer(labels.dtype())) return;
  fail("--loss ", to_string(term), ": the labels '", labels.value()->name(), "' are ", to_string(labels.type()),
       ", the prediction is ", to_string(prediction.type()), "; class indices are integers, without the class axis");
}

// A vector over the classes in a shape that broadcasts along `axis` of a tensor of rank `rank`.
Var along(Var vector, int64_t axis, int64_t rank) {
  std::vector<int64_t> shape(static_cast<size_t>(rank - axis), 1);
  shape[0] = -1;
  return reshape(vector, shape);
}

}  // namespace

void resolve(LossTerm* term, const Graph& graph, const std::string& text) { Resolver(term, graph, text).run(); }

std::string to_string(const LossTerm& term) {
  if (term.is_output) return quoted_if_needed(term.loss.text);
  std::string text;
  for (const Word& name : term.arguments.names) text += (text.empty() ? "" : ", ") + quoted_if_needed(name.text);
  for (const Option& option : term.arguments.options) text += ", " + to_string(option);
  return term.loss.text + "(" + text + ")";
}

// ---- Building

Var LossBuilder::read(const std::string& name) {
  Value* value = b_.graph().find(name);
  return b_.var(&value->graph() == &b_.graph() ? value : version_(value));
}

Var LossBuilder::read_or_add(const std::string& name, DType dtype, const Dims& dims) {
  return b_.graph().find(name) ? read(name) : b_.var(b_.graph().add_input(name, {dtype, dims}));
}

Var LossBuilder::optional_weight(const LossTerm& term, const char* key, DType dtype, const Dims& dims) {
  const Option* option = find_option(term, key);
  return option ? read_or_add(std::get<Word>(option->value).text, dtype, dims) : Var();
}

LossBuilder::Result LossBuilder::build(const LossTerm& term) {
  if (term.is_output) {
    const Var loss = read(term.loss.text);
    return {loss.value()->has_rank() && loss.rank() == 0 ? loss : reshape(loss, std::vector<int64_t>{}), {}};
  }
  if (term.loss.text == "cross_entropy") return cross_entropy(term);
  if (term.loss.text == "nll") return nll(term);
  if (term.loss.text == "bce_with_logits") return {bce_with_logits(term), {}};
  return {distance(term), {}};
}

LossBuilder::Result LossBuilder::cross_entropy(const LossTerm& term) {
  const Var logits = read(term.arguments.names[0].text);
  const Dims& dims = dims_of(logits);
  const int64_t axis = integer(term, "axis", 1);
  const bool probabilities = integer(term, "probabilities", 0) != 0;
  const Var labels = read_or_add(term.arguments.names[1].text, probabilities ? logits.dtype() : DType::kInt64,
                                 probabilities ? dims : without(dims, axis));
  if (is_float(labels.dtype())) return {probability_cross_entropy(term, logits, labels), {}};
  check_labels(term, logits, labels);
  const Var weight = optional_weight(term, "weight", logits.dtype(), {dims[static_cast<size_t>(axis)]});
  const bool indices = labels.dtype() == DType::kInt64 || labels.dtype() == DType::kInt32;
  const auto made = call(b_, "SoftmaxCrossEntropy", 2, {logits, indices ? labels : cast(labels, DType::kInt64), weight},
                         {{"axis", axis},
                          {"ignore_index", integer(term, "ignore_index", -100)},
                          {"label_smoothing", Tensor::scalar(number(term, "label_smoothing", 0))},
                          {"reduction", reduction(term)}});
  Graph& graph = b_.graph();
  graph.rename(made[1].value(), graph.unique_name(made[0].value()->name() + "/log_sum_exp"));
  return {made[0], accuracy(term, logits, labels)};
}

// -Σ_c w[c] t[c] log p[c] with t ← t (1 - s) + s / C, averaged over the positions.
Var LossBuilder::probability_cross_entropy(const LossTerm& term, Var logits, Var target) {
  const int64_t axis = integer(term, "axis", 1);
  const double smoothing = number(term, "label_smoothing", 0);
  if (smoothing > 0) {
    target = target * (1 - smoothing) + smoothing / cast_like(dim(logits, axis), logits);
  }
  Var log_p = b_.op("LogSoftmax", {logits}, {{"axis", axis}});
  const Dim& classes = dims_of(logits)[static_cast<size_t>(axis)];
  if (const Var weight = optional_weight(term, "weight", logits.dtype(), {classes})) {
    log_p = log_p * along(weight, axis, logits.rank());
  }
  return reduced(term, -reduce_sum(target * log_p, std::vector<int64_t>{axis}, /*keepdims=*/false));
}

// -Σᵢ w[yᵢ] x[i, yᵢ] over the positions that are not ignored; mean: divided by Σᵢ w[yᵢ].
LossBuilder::Result LossBuilder::nll(const LossTerm& term) {
  const Var log_p = read(term.arguments.names[0].text);
  const Dims& dims = dims_of(log_p);
  const int64_t axis = integer(term, "axis", 1);
  const Var given = read_or_add(term.arguments.names[1].text, DType::kInt64, without(dims, axis));
  check_labels(term, log_p, given);
  const Var labels = cast(given, DType::kInt64);
  const Var weight = optional_weight(term, "weight", log_p.dtype(), {dims[static_cast<size_t>(axis)]});
  const Var ignored = equal(labels, b_.scalar(DType::kInt64, static_cast<double>(integer(term, "ignore_index", -100))));
  const Var label = where(ignored, b_.scalar(DType::kInt64, 0), labels);
  const Var zero = b_.scalar(log_p.dtype(), 0);
  const Var counted = where(ignored, zero, weight ? gather(weight, label, 0) : b_.scalar(log_p.dtype(), 1));
  const Var picked = squeeze(b_.op("GatherElements", {log_p, unsqueeze(label, {axis})}, {{"axis", axis}}), {axis});
  const Var sum = -sum_all(where(ignored, zero, picked * counted));
  return {reduction(term) == "sum" ? sum : sum / sum_all(counted), accuracy(term, log_p, labels)};
}

// w ((1 - t) x + (1 + (p - 1) t) log(1 + e⁻ˣ))      p: pos_weight
// log(1 + e⁻ˣ) = max(-x, 0) + log(1 + exp(-|x|)) never overflows, and runs in float64 where Softplus often does not.
Var LossBuilder::bce_with_logits(const LossTerm& term) {
  const Var x = read(term.arguments.names[0].text);
  const Dims& dims = dims_of(x);
  const Var t = read_or_add(term.arguments.names[1].text, x.dtype(), dims);
  Var loss = max(-x, b_.scalar(x.dtype(), 0)) + log(exp(-abs(x)) + 1.0);
  const Dims last = dims.empty() ? Dims{} : Dims{dims.back()};
  if (const Var pos_weight = optional_weight(term, "pos_weight", x.dtype(), last)) {
    loss = loss * ((pos_weight - 1.0) * t + 1.0);
  }
  loss = (1.0 - t) * x + loss;
  if (const Var weight = optional_weight(term, "weight", x.dtype(), dims)) loss = loss * weight;
  return reduced(term, loss);
}

// mse: d²      l1: |d|      huber: d² / 2 where |d| < δ, else δ (|d| - δ / 2)
Var LossBuilder::distance(const LossTerm& term) {
  const Var x = read(term.arguments.names[0].text);
  const Var d = x - cast_like(read_or_add(term.arguments.names[1].text, x.dtype(), dims_of(x)), x);
  if (term.loss.text == "mse") return reduced(term, d * d);
  const Var size = abs(d);
  if (term.loss.text == "l1") return reduced(term, size);
  const double delta = number(term, "delta", 1);
  return reduced(term, where(size < delta, d * d * 0.5, (size - delta / 2) * delta));
}

Var LossBuilder::accuracy(const LossTerm& term, Var prediction, Var labels) {
  b_.set_name("accuracy/part");
  const Var best = b_.op("ArgMax", {prediction}, {{"axis", integer(term, "axis", 1)}, {"keepdims", 0}});
  const Var label = cast(labels, DType::kInt64);
  const Var counted =
      logical_not(equal(label, b_.scalar(DType::kInt64, static_cast<double>(integer(term, "ignore_index", -100)))));
  const Var right = cast(logical_and(equal(best, label), counted), DType::kFloat);
  return sum_all(right) / max(sum_all(cast(counted, DType::kFloat)), b_.scalar(DType::kFloat, 1));
}

}  // namespace onnx_train
