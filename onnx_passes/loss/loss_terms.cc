#include "onnx_passes/loss/loss_terms.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/term_builder.h"

namespace onnx_train {
namespace {

// The first value with an axis; null if there is none.
Value* first_with_axes(const std::vector<Value*>& values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](const Value* v) { return v->has_rank() && v->rank() > 0; });
  return found == values.end() ? nullptr : *found;
}

}  // namespace

std::string value_text(const Option& option) {
  if (const Word* word = std::get_if<Word>(&option.value)) return quoted_if_needed(word->text);
  const auto* list = std::get_if<std::vector<double>>(&option.value);
  if (!list) return number_text(std::get<double>(option.value));
  std::string text;
  for (double number : *list) text += (text.empty() ? "[" : ", ") + number_text(number);
  return text + "]";
}

const Dims& dims_of(Var x) {
  x.rank();  // throws if unknown
  return *x.type().dims;
}

Dims chosen(const Dims& dims, const std::vector<int64_t>& axes, const std::string& name) {
  Dims result;
  for (int64_t axis : axes) result.push_back(axis < 0 ? Dim(name + "_length") : dims[static_cast<size_t>(axis)]);
  return result;
}

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

std::string to_string(const LossTerm& term) {
  if (term.is_output) return quoted_if_needed(term.loss.text);
  std::string text;
  for (const Word& name : term.arguments.names) text += (text.empty() ? "" : ", ") + quoted_if_needed(name.text);
  for (const Option& option : term.arguments.options) text += concat(", ", option.key.text, "=", value_text(option));
  return term.loss.text + "(" + text + ")";
}

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
  const Dims found = dims_of(x), wanted = chosen(dims_of(prediction), axes, name);
  bool certain = found.size() == axes.size();
  for (size_t i = 0; certain && i < axes.size(); ++i) {
    certain = axes[i] < 0 || certainly_equal(found[i], wanted[i]);
  }
  if (certain) return x;
  Var sizes;
  if (std::ranges::count(axes, -1) == 0) {
    sizes = gather(shape(prediction), b_.ints(axes), 0);
  } else {
    std::vector<Var> each;
    for (size_t i = 0; i < axes.size(); ++i) {
      each.push_back(axes[i] < 0 ? dim(x, static_cast<int64_t>(i)) : dim(prediction, axes[i]));
    }
    sizes = concat(each, 0);
  }
  constexpr double kNoSize = -9;  // Reshape rejects this size
  const Var checked = where(equal(shape(x), sizes), sizes, b_.scalar(DType::kInt64, kNoSize));
  b_.set_name(concat("loss/'", name, "' has the sizes that '", prediction.value()->name(), "' asks for"));
  const Var result = b_.op("Reshape", {x, checked});
  result.value()->set_type({x.dtype(), wanted});
  b_.set_name("loss/part");
  return result;
}

Var LossBuilder::broadcast(const std::string& name, Var x, Var prediction) {
  const Dims found = dims_of(x), wanted = dims_of(prediction);
  const bool certain = std::equal(found.rbegin(), found.rend(), wanted.rbegin(),
                                  [&](const Dim& a, const Dim& b) { return a == Dim(1) || certainly_equal(a, b); });
  if (certain) return x;
  return with_sizes(name, expand(x, shape(prediction)), prediction, all_axes(prediction));
}

LossResult LossBuilder::build(const LossTerm& term) {
  if (term.is_output) {
    const Var loss = read(term.loss.text);
    const Var scalar = loss.value()->has_rank() && loss.rank() == 0 ? loss : reshape(loss, std::vector<int64_t>{});
    return of_samples(scalar);
  }
  TermBuilder builder(this, term, *term.row);
  return term.row->build(builder);
}

LossResult LossBuilder::of_samples(Var loss) {
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

}  // namespace onnx_train
