#include "kernels/lowering/layout/channels_last_rules.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "kernels/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/resampling.h"
#include "onnx_passes/ir/windows.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using Rule = ChannelsLastRule;
using Permutation = std::vector<int64_t>;

bool is_static(const Value* value) { return value && value->type().is_static(); }

// An image has a batch, channels and at least one spatial size.
bool is_image(const Value* value) { return is_static(value) && value->rank() >= 3; }

Shape permute(const Shape& shape, const Permutation& permutation) {
  Shape permuted;
  for (int64_t axis : permutation) permuted.push_back(shape[static_cast<size_t>(axis)]);
  return permuted;
}

Shape channels_last_shape(const Value* image) {
  const Shape shape = image->type().shape();
  return permute(shape, to_channels_last(static_cast<int64_t>(shape.size())));
}

// Returns the position of a channels-first axis in channels-last order.
int64_t moved(int64_t axis, int64_t rank) {
  axis = normalize_axis(axis, rank);
  return axis == 0 ? 0 : axis == 1 ? rank - 1 : axis - 1;
}

Permutation moved(Permutation axes, int64_t rank) {
  for (int64_t& axis : axes) axis = moved(axis, rank);
  return axes;
}

std::vector<int> count_up(int n) {
  std::vector<int> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// ---- Windows

// Whether the value is float32 and not empty, as the channels-last convolution kernels require.
bool is_fast(const Value* value) {
  return is_static(value) && value->dtype() == DType::kFloat && num_elements(value->type().shape()) > 0;
}

bool are_fast_images(std::initializer_list<const Value*> images) {
  return std::all_of(images.begin(), images.end(), [](const Value* v) { return is_image(v) && is_fast(v); }) &&
         (*images.begin())->rank() <= 5;
}

Attrs window_attrs(const Windows& w) {
  return {{"strides", w.strides}, {"dilations", w.dilations}, {"pads", w.pads()}, {"channels_last", 1}};
}

Attrs convolution_attrs(const Node& node, const Windows& w) {
  Attrs attrs = window_attrs(w);
  attrs.emplace_back("group", node.attr("group", 1));
  return attrs;
}

Attrs pool_attrs(const Node& node, const Windows& w, const char* flag) {
  Attrs attrs = window_attrs(w);
  attrs.emplace_back("kernel_shape", w.kernel);
  attrs.emplace_back(flag, node.attr(flag, 0));
  return attrs;
}

// Keeps the operator, channels last. Input `shape` is the shape of its output; -1: none.
Rule same_operator(const Node& node, std::vector<int> images, std::vector<int> results, const Attrs& attrs,
                   int shape = -1) {
  return {std::move(images), std::move(results), true, [&node, attrs, shape](Builder& b, std::vector<Var> inputs) {
            if (shape >= 0) inputs[static_cast<size_t>(shape)] = b.ints(channels_last_shape(node.output()));
            return call_lowered(b, node.op(), node.num_outputs(), inputs, attrs);
          }};
}

std::optional<Rule> conv(const Node& node) {
  const auto windows = find_windows(node);
  if (!windows || !are_fast_images({node.input(0), node.output()}) || !is_fast(node.input(1))) return std::nullopt;
  return same_operator(node, {0}, {0}, convolution_attrs(node, *windows));
}

// A transposed convolution is the input gradient of a convolution, plus the bias.
std::optional<Rule> conv_transpose(const Node& node) {
  const auto windows = find_windows(node);
  if (!windows || !are_fast_images({node.input(0), node.output()}) || !is_fast(node.input(1))) return std::nullopt;
  return Rule{{0},
              {0},
              true,
              [attrs = convolution_attrs(node, *windows), y = channels_last_shape(node.output())](
                  Builder& b, const std::vector<Var>& inputs) {
                const Var product = call_lowered(b, "ConvGradInput", {inputs[0], inputs[1], b.ints(y)}, attrs);
                return std::vector{inputs.size() > 2 && inputs[2] ? product + inputs[2] : product};
              }};
}

std::optional<Rule> conv_grad_input(const Node& node) {
  if (!are_fast_images({node.input(0), node.output()}) || !is_fast(node.input(1))) return std::nullopt;
  return same_operator(node, {0}, {0}, convolution_attrs(node, *find_windows(node)), 2);
}

std::optional<Rule> conv_grad_weight(const Node& node) {
  if (!are_fast_images({node.input(0), node.input(1)}) || !is_fast(node.output())) return std::nullopt;
  return same_operator(node, {0, 1}, {}, convolution_attrs(node, *find_windows(node)));
}

std::optional<Rule> pool(const Node& node, const char* flag) {
  const auto windows = find_windows(node);
  if (!windows || node.num_outputs() > 1 || !are_fast_images({node.input(0), node.output()})) return std::nullopt;
  Attrs attrs = pool_attrs(node, *windows, flag);
  if (node.is("AveragePool")) attrs.emplace_back("ceil_mode", node.attr("ceil_mode", 0));
  return same_operator(node, {0}, {0}, attrs);
}

std::optional<Rule> max_pool_grad(const Node& node) {
  if (!are_fast_images({node.input(0), node.input(1)})) return std::nullopt;
  return same_operator(node, {0, 1}, {0}, pool_attrs(node, *find_windows(node), "ceil_mode"));
}

std::optional<Rule> average_pool_grad(const Node& node) {
  if (!are_fast_images({node.input(0), node.output()})) return std::nullopt;
  return same_operator(node, {0}, {0}, pool_attrs(node, *find_windows(node), "count_include_pad"), 1);
}

std::optional<Rule> global_pool(const Node& node, const char* reduction) {
  if (!is_image(node.input(0))) return std::nullopt;
  Permutation axes(static_cast<size_t>(node.input(0)->rank() - 2));
  std::iota(axes.begin(), axes.end(), 1);
  return Rule{{0}, {0}, false, [reduction, axes](Builder& b, const std::vector<Var>& inputs) {
                return std::vector{b.op(reduction, {inputs[0], b.ints(axes)})};
              }};
}

// ---- Per channel

// Reshapes channels-last images to [elements, channels], which BatchNormalization also accepts. `images` and `results`
// are indices of inputs and outputs; absent ones are ignored.
std::optional<Rule> batch_normalization(const Node& node, std::vector<int> images, std::vector<int> results) {
  std::erase_if(images, [&](int i) { return !node.input(i); });
  for (int i : images) {
    const Value* image = node.input(i);
    if (!is_image(image) || image->type() != node.input(0)->type()) return std::nullopt;
  }
  if (num_elements(node.input(0)->type().shape()) == 0) return std::nullopt;
  std::erase_if(results, [&](int i) { return !node.output(i); });
  return Rule{images, results, false, [&node, images, results](Builder& b, std::vector<Var> inputs) {
                const Shape shape = inputs[0].type().shape();
                for (int i : images) {
                  Var& image = inputs[static_cast<size_t>(i)];
                  image = reshape(image, {num_elements(shape) / shape.back(), shape.back()});
                }
                std::vector<Var> outputs = b.like(node, inputs, node.num_outputs());
                for (int i : results) outputs[static_cast<size_t>(i)] = reshape(outputs[static_cast<size_t>(i)], shape);
                return outputs;
              }};
}

// Handles GroupNormalization, InstanceNormalization (one group per channel), and their gradient.
std::optional<Rule> group_normalization(const Node& node, const std::vector<int>& images) {
  const Value* x = node.input(0);
  for (int i : images) {
    if (!is_image(node.input(i)) || node.input(i)->type() != x->type()) return std::nullopt;
  }
  const Shape shape = x->type().shape();
  if (num_elements(shape) == 0 || !is_static(node.input(1)) || node.input(1)->type().shape() != Shape{shape[1]})
    return std::nullopt;
  const Attrs attrs = {{"num_groups", node.attr("num_groups", shape[1])},
                       {"epsilon", node.attr("epsilon", 1e-5f)},
                       {"channels_last", 1}};
  // An InstanceNormalization becomes a GroupNormalization.
  const bool gradient = node.is("GroupNormalizationGrad", kDomain);
  return Rule{images, {0}, false, [=, outputs = node.num_outputs()](Builder& b, const std::vector<Var>& inputs) {
                return call_lowered(b, gradient ? "GroupNormalizationGrad" : "GroupNormalization", outputs, inputs,
                                    attrs);
              }};
}

// ---- Element by element

// Gives operands with fewer axes, which are per-channel constants or have one element, all axes.
Var full_rank(Var operand, int64_t rank) {
  Shape shape = operand.type().shape();
  if (num_elements(shape) == 1) return operand;
  shape.insert(shape.begin(), static_cast<size_t>(rank) - shape.size(), 1);
  const auto reshaped = [&](const Shape& to) { return reshape(operand, operand.builder().ints(to)); };
  const Permutation permutation = to_channels_last(rank);
  return only_moves_ones(shape, permutation) ? reshaped(permute(shape, permutation))
                                             : permuted(reshaped(shape), permutation);
}

std::optional<Rule> elementwise(const Node& node) {
  const Value* y = node.output();
  if (!is_image(y) || node.num_outputs() != 1) return std::nullopt;
  const int operands = node.is("CastLike") ? 1 : node.num_inputs();
  std::vector<int> images, others;
  for (int i = 0; i < operands; ++i) {
    if (!node.input(i)) continue;
    if (!is_static(node.input(i))) return std::nullopt;
    (node.input(i)->rank() == y->rank() ? images : others).push_back(i);
  }
  if (images.empty()) return std::nullopt;
  return Rule{images, {0}, false, [&node, others, rank = y->rank()](Builder& b, std::vector<Var> inputs) {
                for (int i : others) inputs[static_cast<size_t>(i)] = full_rank(inputs[static_cast<size_t>(i)], rank);
                return b.like(node, inputs);
              }};
}

// ---- Along axes

std::optional<Rule> reduction(const Node& node) {
  const Value* x = node.input(0);
  if (!is_image(x) || !is_static(node.output())) return std::nullopt;
  Permutation axes = node.attr("axes", Permutation{});
  if (node.input(1)) axes = constant_of(node.input(1)).to_ints();
  if (axes.empty()) return std::nullopt;
  std::vector<bool> reduced(static_cast<size_t>(x->rank()));
  for (int64_t& axis : axes) reduced[static_cast<size_t>(axis = normalize_axis(axis, x->rank()))] = true;
  const bool keeps = node.attr("keepdims", 1) != 0;
  const bool all_sizes = std::all_of(reduced.begin() + 2, reduced.end(), [](bool is) { return is; });
  // The other axes must keep their order.
  if (!keeps && !reduced[1] && !all_sizes) return std::nullopt;
  return Rule{{0},
              keeps ? std::vector{0} : std::vector<int>{},
              false,
              [&node, axes = moved(axes, x->rank())](Builder& b, std::vector<Var> inputs) {
                inputs.resize(2);
                inputs[1] = b.ints(axes);
                return b.like(node, inputs);
              }};
}

// Handles operators whose inputs and outputs are all images, by remapping the attribute `axis`.
std::optional<Rule> along_axis(const Node& node, int64_t default_axis, int images) {
  for (int i = 0; i < images; ++i) {
    if (!is_image(node.input(i)) || node.input(i)->rank() != node.input(0)->rank()) return std::nullopt;
  }
  for (const Value* output : node.outputs()) {
    if (!is_image(output)) return std::nullopt;
  }
  const Attr axis = {"axis", moved(node.attr("axis", default_axis), node.input(0)->rank())};
  const Attrs attrs =
      node.has_attr("num_outputs") ? Attrs{axis, {"num_outputs", node.attr("num_outputs", 0)}} : Attrs{axis};
  return Rule{count_up(images), count_up(node.num_outputs()), false,
              [&node, attrs](Builder& b, const std::vector<Var>& inputs) {
                return b.ops(node.op(), node.num_outputs(), inputs, attrs);
              }};
}

// Handles operators whose input 3 lists axes; if absent, these are the first axes in order.
std::optional<Rule> along_listed_axes(const Node& node) {
  constexpr int axes_input = 3;
  const Value* x = node.input(0);
  if (!is_image(x) || !is_image(node.output())) return std::nullopt;
  Permutation axes;
  if (node.input(axes_input)) {
    const Tensor listed = constant_of(node.input(axes_input));
    if (listed.empty()) return std::nullopt;
    axes = listed.to_ints();
  } else {
    const Value* bounds = node.input(1);
    if (!is_static(bounds)) return std::nullopt;
    const int64_t numbers = num_elements(bounds->type().shape());  // a Pad has two per axis
    axes.resize(static_cast<size_t>(node.is("Pad") ? numbers / 2 : numbers));
    std::iota(axes.begin(), axes.end(), 0);
  }
  return Rule{{0}, {0}, false, [&node, axes = moved(axes, x->rank())](Builder& b, std::vector<Var> inputs) {
                inputs.resize(std::max<size_t>(inputs.size(), axes_input + 1));
                inputs[axes_input] = b.ints(axes);
                return b.like(node, inputs);
              }};
}

std::optional<Rule> expand(const Node& node) {
  if (!is_image(node.input(0)) || !is_image(node.output())) return std::nullopt;
  if (node.input(0)->rank() != node.output()->rank()) return std::nullopt;
  return Rule{
      {0}, {0}, false, [&node, shape = channels_last_shape(node.output())](Builder& b, std::vector<Var> inputs) {
        return b.like(node, {inputs[0], b.ints(shape)});
      }};
}

// Handles Resize and its gradient: the listed axes keep their order and get their new positions.
std::optional<Rule> resize(const Node& node) {
  if (!is_image(node.input(0)) || !is_image(node.output())) return std::nullopt;
  return Rule{{0}, {0}, false, [&node](Builder& b, std::vector<Var> inputs) {
                const int64_t rank = node.output()->rank();
                Attrs attrs = resize_attrs(node, moved(resize_axes(node, rank), rank));
                if (node.is("ResizeGrad", kDomain)) {
                  inputs[1] = b.ints(channels_last_shape(node.output()));
                  return std::vector{call(b, "ResizeGrad", inputs, attrs)};
                }
                attrs.emplace_back("extrapolation_value", node.attr("extrapolation_value", 0.0f));
                return std::vector{b.op("Resize", inputs, attrs)};
              }};
}

// ---- The table

using MakeRule = std::function<std::optional<Rule>(const Node&)>;

std::unordered_map<std::string, MakeRule> make_table() {
  std::unordered_map<std::string, MakeRule> table;
  const auto bind = [](auto make, auto... arguments) {
    return [=](const Node& node) { return make(node, arguments...); };
  };
  table["Conv"] = conv;
  table["ConvTranspose"] = conv_transpose;
  table["ConvGradInput"] = conv_grad_input;
  table["ConvGradWeight"] = conv_grad_weight;
  table["MaxPool"] = bind(pool, "ceil_mode");
  table["MaxPoolGrad"] = max_pool_grad;
  table["AveragePool"] = bind(pool, "count_include_pad");
  table["AveragePoolGrad"] = average_pool_grad;
  table["GlobalAveragePool"] = bind(global_pool, "ReduceMean");
  table["GlobalMaxPool"] = bind(global_pool, "ReduceMax");
  const std::vector<int> first = {0};
  table["BatchNormalization"] = bind(batch_normalization, std::vector{0, 5}, first);
  table["BatchNormalizationTrain"] = bind(batch_normalization, std::vector{0, 3}, first);
  table["BatchNormalizationGrad"] = bind(batch_normalization, std::vector{0, 4, 5}, std::vector{0, 3});
  table["BatchNormalizationFrozenGrad"] = bind(batch_normalization, std::vector{0, 4}, first);
  table["GroupNormalization"] = bind(group_normalization, first);
  table["InstanceNormalization"] = bind(group_normalization, first);
  table["GroupNormalizationGrad"] = bind(group_normalization, std::vector{0, 2});
  table["Softmax"] = bind(along_axis, -1, 1);
  table["LogSoftmax"] = bind(along_axis, -1, 1);
  table["Split"] = bind(along_axis, 0, 1);
  table["Concat"] = [](const Node& node) { return along_axis(node, 0, node.num_inputs()); };
  table["Slice"] = along_listed_axes;
  table["Pad"] = along_listed_axes;
  table["Expand"] = expand;
  table["Resize"] = resize;
  table["ResizeGrad"] = resize;
  return table;
}

}  // namespace

std::optional<Rule> channels_last_rule(const Node& node) {
  static const std::unordered_map<std::string, MakeRule> table = make_table();
  if ((!node.domain().empty() && node.domain() != kDomain) || is_channels_last(node)) return std::nullopt;
  const OperatorKind kind = operator_of(node).kind;
  if (kind == OperatorKind::kElementwise) return elementwise(node);
  if (kind == OperatorKind::kReduction) return reduction(node);
  const auto found = table.find(node.op());
  return found == table.end() ? std::nullopt : found->second(node);
}

Permutation to_channels_last(int64_t rank) {
  Permutation permutation = {0};
  for (int64_t axis = 2; axis < rank; ++axis) permutation.push_back(axis);
  permutation.push_back(1);
  return permutation;
}

Permutation to_channels_first(int64_t rank) {
  Permutation permutation = {0, rank - 1};
  for (int64_t axis = 1; axis < rank - 1; ++axis) permutation.push_back(axis);
  return permutation;
}

bool only_moves_ones(const Shape& shape, const Permutation& permutation) {
  int64_t last = -1;
  for (int64_t axis : permutation) {
    if (shape[static_cast<size_t>(axis)] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

Var permuted(Var value, const Permutation& last) {
  Permutation permutation = last;
  for (const Node* before = value.value()->producer(); before && before->is("Transpose") && before->has_attr("perm");
       before = value.value()->producer()) {
    permutation = permute(before->attr("perm", Permutation{}), permutation);
    value = value.builder().var(before->input(0));
  }
  if (std::is_sorted(permutation.begin(), permutation.end())) return value;
  const Shape shape = value.type().shape();
  return only_moves_ones(shape, permutation) ? reshape(value, value.builder().ints(permute(shape, permutation)))
                                             : transpose(value, permutation);
}

}  // namespace onnx_train
