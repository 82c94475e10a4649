#include "onnx_passes/loss/term_builder.h"

#include <algorithm>
#include <numeric>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

// ---- Arguments

Var TermBuilder::argument(size_t i, Var like) {
  const bool indices = row_.arguments[i].kind == ArgumentKind::kIndices && !floats(i);
  const std::vector<int64_t> axes = argument_axes(term_, i, x().rank(), floats(i));
  const DType dtype = indices ? DType::kInt64 : like.dtype();
  const Var value = losses_.read_or_add(name(i), dtype, chosen(dims_of(x()), axes, name(i)));
  if (row_.arguments[i].shape == ArgumentShape::kBroadcasts)
    return losses_.broadcast(name(i), cast_like(value, like), x());
  const Var sized = losses_.with_sizes(name(i), value, x(), axes);
  return indices ? sized : cast_like(sized, like);
}

Labels TermBuilder::labels(Var x) {
  Labels labels;
  labels.given = argument(1, x);
  const Var index = cast(labels.given, DType::kInt64);
  labels.ignored = equal(index, b().scalar(DType::kInt64, static_cast<double>(integer("ignore_index"))));
  labels.index =
      call(b(), "ClassIndex", {index, x}, {{"axis", integer("axis")}, {"ignore_index", integer("ignore_index")}});
  return labels;
}

// ---- Options

namespace {

Tensor vector_of(const std::vector<double>& numbers, DType dtype) {
  Tensor vector(dtype, {static_cast<int64_t>(numbers.size())});
  for (size_t i = 0; i < numbers.size(); ++i) vector.set(static_cast<int64_t>(i), numbers[i]);
  return vector;
}

}  // namespace

Var TermBuilder::scalar(const char* option, Var like) {
  const Option* given = find_option(term_, option);
  const Word* name = given ? std::get_if<Word>(&given->value) : nullptr;
  if (!name) return b().scalar(like.dtype(), number(option));
  const Var value = cast_like(losses_.read_or_add(name->text, like.dtype(), {}), like);
  return value.value()->has_rank() && value.rank() == 0 ? value : reshape(value, std::vector<int64_t>{});
}

Var TermBuilder::class_weight(Var x) {
  const Option* option = find_option(term_, "weight");
  if (!option) return {};
  const std::vector<int64_t> axis = {integer("axis")};
  if (const auto* list = std::get_if<std::vector<double>>(&option->value))
    return losses_.with_sizes("weight", b().constant(vector_of(*list, x.dtype())), x, axis);
  const std::string& name = std::get<Word>(option->value).text;
  const Var weight = losses_.read_or_add(name, x.dtype(), chosen(dims_of(x), axis));
  return losses_.with_sizes(name, cast_like(weight, x), x, axis);
}

Var TermBuilder::element_weight(const char* option, Var x) {
  const Option* given = find_option(term_, option);
  if (!given) return {};
  Dims dims = dims_of(x);
  if (find_option(row_, option)->kind == OptionKind::kChannelWeight && !dims.empty()) dims = {dims.back()};
  if (const auto* list = std::get_if<std::vector<double>>(&given->value))
    return losses_.broadcast(option, b().constant(vector_of(*list, x.dtype())), x);
  const std::string& name = std::get<Word>(given->value).text;
  return losses_.broadcast(name, cast_like(losses_.read_or_add(name, x.dtype(), dims), x), x);
}

Var TermBuilder::weight_of_samples(Var losses, Var x) {
  const Option* option = find_option(term_, "sample_weight");
  if (!option) return {};
  const std::string& name = std::get<Word>(option->value).text;
  const std::vector<int64_t> axis = {batch_axis(term_)};
  const Var weight = losses_.read_or_add(name, x.dtype(), chosen(dims_of(x), axis));
  return along(losses_.with_sizes(name, cast_like(weight, losses), x, axis), 0, losses.rank());
}

// ---- Means

namespace {

// Σ losses / Σ counts; 0 where nothing counts.
Var mean_of(Var sum, Var total) {
  Builder& b = sum.builder();
  const Var zero = b.scalar(sum.dtype(), 0), nothing = equal(total, zero);
  return where(nothing, zero, sum / where(nothing, b.scalar(sum.dtype(), 1), total));
}

LossResult plain_mean(Var x, const PositionLosses& positions) {
  const Var losses = positions.losses;
  Builder& b = losses.builder();
  const Dims dims = chosen(dims_of(x), positions.of);
  Var loss = b.op("ReduceMean", {losses}, {{"keepdims", 0}});
  const bool may_be_empty = std::ranges::any_of(dims, [](const Dim& d) { return !d.known() || d.value() == 0; });
  b.set_name("loss/count");
  const Var number = size(losses);
  if (may_be_empty) loss = where(equal(number, b.scalar(DType::kInt64, 0)), b.scalar(loss.dtype(), 0), loss);
  return {.loss = loss, .count = cast(number, loss.dtype()), .what = positions.what, .key = proportions(x, dims)};
}

}  // namespace

LossResult TermBuilder::reduced(Var x, PositionLosses positions) {
  if (reduction_of(term_) == "batchmean") {
    std::vector<int64_t> others = all_axes(positions.losses);
    others.erase(others.begin());
    positions = {reduce_sum(positions.losses, others, /*keepdims=*/false), "samples", {batch_axis(term_)}};
  }
  const Var samples = weight_of_samples(positions.losses, x);
  if (!samples && !positions.ignored && !is_sum()) return plain_mean(x, positions);
  Var losses = samples ? positions.losses * samples : positions.losses;
  const Var zero = b().scalar(losses.dtype(), 0), one = b().scalar(losses.dtype(), 1);
  if (positions.ignored) losses = where(positions.ignored, zero, losses);
  if (is_sum()) return {.loss = sum_all(losses)};
  Var counts = positions.counts ? positions.counts : one;
  if (samples) {
    const Var weights = positions.counts ? counts * samples : samples;
    counts = expand(weights, shape(losses));
  }
  if (positions.ignored) counts = where(positions.ignored, zero, counts);
  const Var total = sum_all(counts);
  std::string key = concat("counted\n", positions.key, '\n', proportions(x, chosen(dims_of(x), positions.of)));
  if (samples) key += '\n' + std::get<Word>(find_option(term_, "sample_weight")->value).text;
  return {.loss = mean_of(sum_all(losses), total),
          .count = total,
          .what = concat(positions.what, samples ? " times sample weights" : ""),
          .key = key};
}

LossResult TermBuilder::of_labels(Var x, const Labels& labels, Var losses, Var counts) {
  const std::vector<int64_t> positions = axes_without(x, integer("axis"));
  return of_labels(reduced(x, {losses, counts ? "weights of labels" : "labels", positions, labels.ignored, counts,
                               labels_key(labels.given)}),
                   x, labels.given, counts);
}

std::string TermBuilder::labels_key(Var labels) const {
  std::string key = concat("labels\n", labels.value()->name(), '\n', integer("ignore_index"));
  const Option* weight = find_option(term_, "weight");
  return weight ? concat(key, '\n', value_text(*weight)) : key;
}

// The mean is over Σᵢ w[yᵢ], of the positions that are not ignored.
LossResult TermBuilder::of_labels(LossResult result, Var x, Var labels, Var weight) {
  b().set_name("accuracy/part");
  const Var best = b().op("ArgMax", {x}, {{"axis", integer("axis")}, {"keepdims", 0}});
  const auto ignore_index = static_cast<double>(integer("ignore_index"));
  const Var label = cast(labels, DType::kInt64);
  const Var counted = logical_not(equal(label, b().scalar(DType::kInt64, ignore_index)));
  const Var right = sum_all(cast(logical_and(equal(best, label), counted), DType::kFloat));
  result.accuracy_count = sum_all(cast(counted, DType::kFloat));
  result.accuracy = right / max(result.accuracy_count, b().scalar(DType::kFloat, 1));
  if (is_sum() || result.count) return result;
  result.count = result.accuracy_count;
  result.what = "labels";
  result.key = labels_key(labels);
  if (!weight) return result;
  result.what = "weights of labels";
  b().set_name("loss/count");
  const Var class_or_first = where(counted, label, b().scalar(DType::kInt64, 0));
  result.count = sum_all(where(counted, gather(weight, class_or_first, 0), b().scalar(weight.dtype(), 0)));
  return result;
}

// ---- Of several rows

Var above_zero(Var x) { return where(x < 0.0, x.builder().scalar(x.dtype(), 0), x); }

Var sign_of_target(Var t) {
  Builder& b = t.builder();
  return where(equal(t, b.scalar(t.dtype(), 0)), b.scalar(t.dtype(), -1), t);
}

// max(x, 0) + log(1 + exp(-|x|)) never overflows, and runs in float64 where Softplus often does not.
Var softplus(Var x, Var size) {
  const Var linear = max(x, x.builder().scalar(x.dtype(), 0));
  return linear + log(exp(-size) + 1.0);
}

Var normalized(Var x, double eps) {
  const Var square = reduce_sum(x * x, std::vector<int64_t>{x.rank() - 1});
  const double least = eps * eps;
  return x / sqrt(where(square < least, x.builder().scalar(x.dtype(), least), square));
}

Var power_of_missing(Var q, double gamma) {
  constexpr double kLeast = 1e-30;
  if (gamma == 1) return q;
  if (gamma < 1) q = where(q < kLeast, q.builder().scalar(q.dtype(), kLeast), q);
  return pow(q, gamma);
}

Var picked(Var x, Var index, int64_t axis) {
  return squeeze(x.builder().op("GatherElements", {x, unsqueeze(index, {axis})}, {{"axis", axis}}), {axis});
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

Var along(Var vector, int64_t axis, int64_t rank) {
  std::vector<int64_t> shape(static_cast<size_t>(rank - axis), 1);
  shape[0] = -1;
  return rank - axis == 1 ? vector : reshape(vector, shape);
}

Var log_softmax(Var x, int64_t axis) { return x.builder().op("LogSoftmax", {x}, {{"axis", axis}}); }

}  // namespace onnx_train
