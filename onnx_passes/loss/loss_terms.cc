#include "onnx_passes/loss/loss_terms.h"

#include <algorithm>
#include <numeric>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
// ---- Reading a term

const Option* find_option(const LossTerm& term, const std::string& key) {
  for (const Option& option : term.arguments.options) {
    if (option.key.text == key) return &option;
  }
  return nullptr;
}

double number_of(const LossTerm& term, const std::string& key, double otherwise) {
  const Option* option = find_option(term, key);
  return option ? std::get<double>(option->value) : otherwise;
}

int64_t integer_of(const LossTerm& term, const std::string& key, int64_t otherwise) {
  return static_cast<int64_t>(number_of(term, key, static_cast<double>(otherwise)));
}

std::string reduction_of(const LossTerm& term) {
  const Option* option = find_option(term, "reduction");
  return option ? std::get<Word>(option->value).text : "mean";
}

namespace {

std::string to_string(const Option& option) {
  std::string text = option.key.text + "=";
  if (const Word* word = std::get_if<Word>(&option.value)) return text + quoted_if_needed(word->text);
  return text + number_text(std::get<double>(option.value));
}

const Dims& dims_of(Var x) {
  x.rank();  // throws if unknown
  return *x.type().dims;
}

Dims chosen(const Dims& dims, const std::vector<int64_t>& axes) {
  Dims result;
  for (int64_t axis : axes) result.push_back(dims[static_cast<size_t>(axis)]);
  return result;
}

std::vector<int64_t> all_axes(Var x) {
  std::vector<int64_t> axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

std::vector<int64_t> axes_without(Var x, int64_t axis) {
  std::vector<int64_t> axes = all_axes(x);
  std::erase(axes, axis);
  return axes;
}

// Two values of this text have sizes in a fixed proportion in every plan.
std::string proportions(Var x, const Dims& dims) {
  std::vector<std::string> open;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].known()) continue;
    open.push_back(dims[i].symbol().empty() ? concat(x.value()->name(), '\0', i) : dims[i].symbol());
  }
  std::sort(open.begin(), open.end());
  std::string text = "sizes";
  for (const std::string& symbol : open) text += '\n' + symbol;
  return text;
}

// The first value with an axis; null if there is none.
Value* first_with_axes(const std::vector<Value*>& values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](const Value* v) { return v->has_rank() && v->rank() > 0; });
  return found == values.end() ? nullptr : *found;
}

// A vector over the classes, reshaped to broadcast along `axis` of a tensor of rank `rank`.
Var along(Var vector, int64_t axis, int64_t rank) {
  std::vector<int64_t> shape(static_cast<size_t>(rank - axis), 1);
  shape[0] = -1;
  return reshape(vector, shape);
}

}  // namespace

std::string to_string(const LossTerm& term) {
  if (term.is_output) return quoted_if_needed(term.loss.text);
  std::string text;
  for (const Word& name : term.arguments.names) text += (text.empty() ? "" : ", ") + quoted_if_needed(name.text);
  for (const Option& option : term.arguments.options) text += ", " + to_string(option);
  return term.loss.text + "(" + text + ")";
}

// ---- Building

LossBuilder::LossBuilder(Builder* builder, const Graph& inference, std::function<Value*(Value*)> version)
    : b_(*builder), inference_(inference), version_(std::move(version)) {
  for (const Value* input : inference.inputs()) {
    if (!input->has_rank()) continue;
    for (const Dim& d : *input->type().dims) set_by_inputs_.insert(d.symbol());
  }
  set_by_inputs_.erase("");
}

Var LossBuilder::read(const std::string& name) {
  Value* value = b_.graph().find(name);
  return b_.var(&value->graph() == &b_.graph() ? value : version_(value));
}

Var LossBuilder::read_or_add(const std::string& name, DType dtype, const Dims& dims) {
  return b_.graph().find(name) ? read(name) : b_.var(b_.graph().add_input(name, {dtype, dims}));
}

// Sizes with the same symbol, set by an input, are equal in every plan.
bool LossBuilder::certainly_equal(const Dim& a, const Dim& b) const {
  return a.same(b) && (a.known() || set_by_inputs_.count(a.symbol()));
}

Var LossBuilder::with_sizes(const std::string& name, Var x, Var prediction, const std::vector<int64_t>& axes) {
  const Dims found = dims_of(x), wanted = chosen(dims_of(prediction), axes);
  const bool certain = std::equal(found.begin(), found.end(), wanted.begin(), wanted.end(),
                                  [&](const Dim& a, const Dim& b) { return certainly_equal(a, b); });
  if (certain) return x;
  const Var sizes = gather(shape(prediction), b_.ints(axes), 0);
  constexpr double kNoSize = -9;  // Reshape rejects this size
  const Var checked = where(equal(shape(x), sizes), sizes, b_.scalar(DType::kInt64, kNoSize));
  b_.set_name(concat("loss/'", name, "' has the sizes that '", prediction.value()->name(), "' asks for"));
  const Var result = b_.op("Reshape", {x, checked});
  result.value()->set_type({x.dtype(), wanted});
  b_.set_name("loss/part");
  return result;
}

Var LossBuilder::target(const LossTerm& term, Var prediction, DType dtype, const std::vector<int64_t>& axes) {
  const std::string& name = term.arguments.names[1].text;
  return with_sizes(name, read_or_add(name, dtype, chosen(dims_of(prediction), axes)), prediction, axes);
}

Var LossBuilder::class_weight(const LossTerm& term, Var prediction) {
  const Option* option = find_option(term, "weight");
  if (!option) return {};
  const std::string& name = std::get<Word>(option->value).text;
  const std::vector<int64_t> axis = {integer_of(term, "axis", 1)};
  const Var weight = read_or_add(name, prediction.dtype(), chosen(dims_of(prediction), axis));
  return with_sizes(name, cast_like(weight, prediction), prediction, axis);
}

Var LossBuilder::element_weight(const LossTerm& term, const char* key, Var prediction, const Dims& dims) {
  const Option* option = find_option(term, key);
  if (!option) return {};
  const std::string& name = std::get<Word>(option->value).text;
  const Var weight = cast_like(read_or_add(name, prediction.dtype(), dims), prediction);
  const Dims found = dims_of(weight), wanted = dims_of(prediction);
  const bool certain = std::equal(found.rbegin(), found.rend(), wanted.rbegin(),
                                  [&](const Dim& a, const Dim& b) { return a == Dim(1) || certainly_equal(a, b); });
  if (certain) return weight;
  return with_sizes(name, expand(weight, shape(prediction)), prediction, all_axes(prediction));
}

LossBuilder::Result LossBuilder::build(const LossTerm& term) {
  if (term.is_output) {
    const Var loss = read(term.loss.text);
    const Var scalar = loss.value()->has_rank() && loss.rank() == 0 ? loss : reshape(loss, std::vector<int64_t>{});
    return of_samples(scalar);
  }
  if (term.loss.text == "cross_entropy") return cross_entropy(term);
  if (term.loss.text == "nll") return nll(term);
  return term.loss.text == "bce_with_logits" ? bce_with_logits(term) : distance(term);
}

LossBuilder::Result LossBuilder::cross_entropy(const LossTerm& term) {
  const Var logits = read(term.arguments.names[0].text);
  const int64_t axis = integer_of(term, "axis", 1);
  const Value* known = b_.graph().find(term.arguments.names[1].text);
  if (integer_of(term, "probabilities", 0) != 0 || (known && is_float(known->dtype()))) {
    const Var probabilities = target(term, logits, logits.dtype(), all_axes(logits));
    return probability_cross_entropy(term, logits, cast_like(probabilities, logits));
  }
  const Var labels = target(term, logits, DType::kInt64, axes_without(logits, axis));
  const Var weight = class_weight(term, logits);
  const bool indices = labels.dtype() == DType::kInt64 || labels.dtype() == DType::kInt32;
  const auto made = call(b_, "SoftmaxCrossEntropy", 2, {logits, indices ? labels : cast(labels, DType::kInt64), weight},
                         {{"axis", axis},
                          {"ignore_index", integer_of(term, "ignore_index", -100)},
                          {"label_smoothing", Tensor::scalar(number_of(term, "label_smoothing", 0))},
                          {"reduction", reduction_of(term)}});
  Graph& graph = b_.graph();
  graph.rename(made[1].value(), graph.unique_name(made[0].value()->name() + "/log_sum_exp"));
  return of_labels(term, made[0], logits, labels, weight);
}

// -Σ_c w[c] t[c] log p[c] with t ← t (1 - s) + s / C, averaged over the positions.
LossBuilder::Result LossBuilder::probability_cross_entropy(const LossTerm& term, Var logits, Var target) {
  const int64_t axis = integer_of(term, "axis", 1);
  const double smoothing = number_of(term, "label_smoothing", 0);
  if (smoothing > 0) {
    target = target * (1 - smoothing) + smoothing / cast_like(dim(logits, axis), logits);
  }
  Var log_p = b_.op("LogSoftmax", {logits}, {{"axis", axis}});
  if (const Var weight = class_weight(term, logits)) {
    log_p = log_p * along(weight, axis, logits.rank());
  }
  return reduced(term, -reduce_sum(target * log_p, std::vector<int64_t>{axis}, /*keepdims=*/false), logits,
                 axes_without(logits, axis));
}

// -Σᵢ w[yᵢ] x[i, yᵢ] over the positions that are not ignored; mean: divided by Σᵢ w[yᵢ].
LossBuilder::Result LossBuilder::nll(const LossTerm& term) {
  const Var log_p = read(term.arguments.names[0].text);
  const int64_t axis = integer_of(term, "axis", 1);
  const Var labels = cast(target(term, log_p, DType::kInt64, axes_without(log_p, axis)), DType::kInt64);
  const Var weight = class_weight(term, log_p);
  const Var ignored =
      equal(labels, b_.scalar(DType::kInt64, static_cast<double>(integer_of(term, "ignore_index", -100))));
  const Var label = where(ignored, b_.scalar(DType::kInt64, 0), labels);
  const Var zero = b_.scalar(log_p.dtype(), 0);
  const Var counted = where(ignored, zero, weight ? gather(weight, label, 0) : b_.scalar(log_p.dtype(), 1));
  const Var picked = squeeze(b_.op("GatherElements", {log_p, unsqueeze(label, {axis})}, {{"axis", axis}}), {axis});
  const Var sum = -sum_all(where(ignored, zero, picked * counted));
  if (reduction_of(term) == "sum") return of_labels(term, sum, log_p, labels, weight);
  const Var total = sum_all(counted), nothing = equal(total, zero);
  const Var mean = where(nothing, zero, sum / where(nothing, b_.scalar(log_p.dtype(), 1), total));
  return of_labels(term, mean, log_p, labels, weight);
}

// w ((1 - t) x + (1 + (p - 1) t) log(1 + e⁻ˣ))      p: pos_weight
// log(1 + e⁻ˣ) = max(-x, 0) + log(1 + exp(-|x|)) never overflows, and runs in float64 where Softplus often does not.
LossBuilder::Result LossBuilder::bce_with_logits(const LossTerm& term) {
  const Var x = read(term.arguments.names[0].text);
  const Dims dims = dims_of(x);
  const Var t = cast_like(target(term, x, x.dtype(), all_axes(x)), x);
  Var loss = max(-x, b_.scalar(x.dtype(), 0)) + log(exp(-abs(x)) + 1.0);
  const Dims last = dims.empty() ? Dims{} : Dims{dims.back()};
  if (const Var pos_weight = element_weight(term, "pos_weight", x, last)) {
    loss = loss * ((pos_weight - 1.0) * t + 1.0);
  }
  loss = (1.0 - t) * x + loss;
  if (const Var weight = element_weight(term, "weight", x, dims)) loss = loss * weight;
  return reduced(term, loss, x, all_axes(x));
}

// mse: d²      l1: |d|      huber: d² / 2 where |d| < δ, else δ (|d| - δ / 2)
LossBuilder::Result LossBuilder::distance(const LossTerm& term) {
  const Var x = read(term.arguments.names[0].text);
  const Var d = x - cast_like(target(term, x, x.dtype(), all_axes(x)), x);
  const std::vector<int64_t> axes = all_axes(x);
  if (term.loss.text == "mse") return reduced(term, d * d, x, axes);
  const Var size = abs(d);
  if (term.loss.text == "l1") return reduced(term, size, x, axes);
  const double delta = number_of(term, "delta", 1);
  return reduced(term, where(size < delta, d * d * 0.5, (size - delta / 2) * delta), x, axes);
}

// ---- What counts

LossBuilder::Result LossBuilder::reduced(const LossTerm& term, Var losses, Var prediction,
                                         const std::vector<int64_t>& axes) {
  if (reduction_of(term) == "sum") return {.loss = sum_all(losses)};
  const Dims dims = chosen(dims_of(prediction), axes);
  Var loss = b_.op("ReduceMean", {losses}, {{"keepdims", 0}});
  const bool may_be_empty =
      std::any_of(dims.begin(), dims.end(), [](const Dim& d) { return !d.known() || d.value() == 0; });
  b_.set_name("loss/count");
  const Var number = size(losses);
  if (may_be_empty) loss = where(equal(number, b_.scalar(DType::kInt64, 0)), b_.scalar(loss.dtype(), 0), loss);
  return {.loss = loss,
          .count = cast(number, loss.dtype()),
          .what = axes.size() == dims_of(prediction).size() ? "elements" : "positions",
          .key = proportions(prediction, dims)};
}

LossBuilder::Result LossBuilder::of_samples(Var loss) {
  b_.set_name("loss/count");
  Value* input = first_with_axes(b_.graph().inputs());
  if (!input) input = first_with_axes(inference_.inputs());
  if (!input)
    return {.loss = loss, .count = b_.scalar(loss.dtype(), 1), .what = "batches", .key = proportions(loss, {})};
  const Var x = b_.var(input);
  const Var samples = cast(squeeze(dim(x, 0), {0}), loss.dtype());
  return {.loss = loss,
          .count = samples,
          .what = "samples (what the loss counts is not known)",
          .key = proportions(x, {dims_of(x)[0]})};
}

// mean: the loss is over Σᵢ w[yᵢ], of the positions that are not ignored.
LossBuilder::Result LossBuilder::of_labels(const LossTerm& term, Var loss, Var prediction, Var labels, Var weight) {
  Result result{.loss = loss};
  b_.set_name("accuracy/part");
  const Var best = b_.op("ArgMax", {prediction}, {{"axis", integer_of(term, "axis", 1)}, {"keepdims", 0}});
  const auto ignore_index = static_cast<double>(integer_of(term, "ignore_index", -100));
  const Var label = cast(labels, DType::kInt64);
  const Var counted = logical_not(equal(label, b_.scalar(DType::kInt64, ignore_index)));
  const Var right = cast(logical_and(equal(best, label), counted), DType::kFloat);
  result.accuracy_count = sum_all(cast(counted, DType::kFloat));
  result.accuracy = sum_all(right) / max(result.accuracy_count, b_.scalar(DType::kFloat, 1));
  if (reduction_of(term) == "sum") return result;
  result.count = result.accuracy_count;
  result.what = "labels";
  result.key = concat("labels\n", labels.value()->name(), '\n', integer_of(term, "ignore_index", -100));
  if (!weight) return result;
  result.what = "weights of labels";
  b_.set_name("loss/count");
  const Var class_or_first = where(counted, label, b_.scalar(DType::kInt64, 0));
  result.count = sum_all(where(counted, gather(weight, class_or_first, 0), b_.scalar(weight.dtype(), 0)));
  result.key += '\n' + std::get<Word>(find_option(term, "weight")->value).text;
  return result;
}

}  // namespace onnx_train
