#include "kernels/lowering/layout/channels_last_rules.h"

#include <algorithm>
#include <numeric>

#include "kernels/functions/functions.h"
#include "kernels/geometry/reductions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/resampling.h"
#include "onnx_passes/operators/windows.h"

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

// Whether all are fast images of at most three sizes.
bool are_fast_images(const std::vector<const Value*>& images) {
  return std::all_of(images.begin(), images.end(),
                     [](const Value* v) { return is_image(v) && is_fast(v) && v->rank() <= 5; });
}

std::vector<const Value*> images_of(const Node& node, const Operator& row) {
  std::vector<const Value*> images;
  for (int i : row.image_inputs) images.push_back(node.input(i));
  for (int i : row.image_outputs) images.push_back(node.output(i));
  return images;
}

Attrs convolution_attrs(const Node& node, const Windows& w) {
  return {{"strides", w.strides},
          {"dilations", w.dilations},
          {"pads", w.pads()},
          {"channels_last", 1},
          {"group", node.attr("group", 1)}};
}

Attrs pool_attrs(const Node& node, const Windows& w) {
  Attrs attrs = {{"strides", w.strides},
                 {"dilations", w.dilations},
                 {"pads", w.pads()},
                 {"channels_last", 1},
                 {"kernel_shape", w.kernel}};
  for (const char* flag : {"count_include_pad", "ceil_mode"}) {
    if (node.has_attr(flag)) attrs.emplace_back(flag, node.attr(flag, 0));
  }
  return attrs;
}

// Keeps the operator. Of its inputs, integers hold the shape of an output image.
Rule same_operator(const Node& node, const Operator& row, const Attrs& attrs) {
  return {row.image_inputs, row.image_outputs, true, [&node, &row, attrs](Builder& b, std::vector<Var> inputs) {
            for (Var& input : inputs) {
              if (input && input.dtype() == DType::kInt64 && !row.image_outputs.empty())
                input = b.ints(channels_last_shape(node.output()));
            }
            return call_lowered(b, node.op(), node.num_outputs(), inputs, attrs);
          }};
}

std::optional<Rule> convolution(const Node& node, const Operator& row) {
  const Value* filter = row.image_inputs.size() == 1 ? node.input(1) : node.output();
  if (!are_fast_images(images_of(node, row)) || !is_fast(filter)) return std::nullopt;
  const auto windows = find_windows(node);
  return windows ? std::optional(same_operator(node, row, convolution_attrs(node, *windows))) : std::nullopt;
}

std::optional<Rule> pool(const Node& node, const Operator& row) {
  if (node.num_outputs() > 1 || !are_fast_images(images_of(node, row))) return std::nullopt;
  const auto windows = find_windows(node);
  return windows ? std::optional(same_operator(node, row, pool_attrs(node, *windows))) : std::nullopt;
}

// A transposed convolution is the input gradient of a convolution, plus the bias.
std::optional<Rule> transposed_convolution(const Node& node) {
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

std::optional<Rule> global_pool(const Node& node) {
  const char* reduction = node.is("GlobalMaxPool") ? "ReduceMax" : "ReduceMean";
  if (!is_image(node.input(0))) return std::nullopt;
  Permutation axes(static_cast<size_t>(node.input(0)->rank() - 2));
  std::iota(axes.begin(), axes.end(), 1);
  return Rule{{0}, {0}, false, [reduction, axes](Builder& b, const std::vector<Var>& inputs) {
                return std::vector{b.op(reduction, {inputs[0], b.ints(axes)})};
              }};
}

// ---- Per channel

// Reshapes channels-last images to [elements, channels]. Images that are absent are ignored.
std::optional<Rule> per_channel(const Node& node, const Operator& row) {
  std::vector<int> images = row.image_inputs, results = row.image_outputs;
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
std::optional<Rule> group_normalization(const Node& node, const Operator& row) {
  const std::vector<int>& images = row.image_inputs;
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
  if (!is_image(x) || !is_static(node.output()) || !node.input(1)) return std::nullopt;
  const auto reduced = reduced_axes(node);
  if (!reduced) return std::nullopt;
  Permutation axes;
  for (int64_t axis = 0; axis < x->rank(); ++axis) {
    if ((*reduced)[static_cast<size_t>(axis)]) axes.push_back(moved(axis, x->rank()));
  }
  const bool keeps = node.attr("keepdims", 1) != 0;
  const bool all_sizes = std::all_of(reduced->begin() + 2, reduced->end(), [](bool is) { return is; });
  // The other axes must keep their order.
  if (axes.empty() || (!keeps && !(*reduced)[1] && !all_sizes)) return std::nullopt;
  return Rule{
      {0}, keeps ? std::vector{0} : std::vector<int>{}, false, [&node, axes](Builder& b, std::vector<Var> inputs) {
        inputs.resize(2);
        inputs[1] = b.ints(axes);
        return b.like(node, inputs);
      }};
}

// Remaps the attribute `axis`. All outputs are images, and input 0 or, in a Concat, all inputs.
std::optional<Rule> along_axis(const Node& node) {
  const int64_t default_axis = moves_elements(node) ? 0 : -1;
  const int images = node.is("Concat") ? node.num_inputs() : 1;
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

}  // namespace

std::optional<Rule> channels_last_rule(const Node& node) {
  if (is_channels_last(node)) return std::nullopt;
  const Operator& row = operator_of(node);
  if (row.kind == OperatorKind::kElementwise) return elementwise(node);
  if (row.kind == OperatorKind::kReduction) return reduction(node);
  switch (row.image_role) {
    case ImageRole::kNone: return std::nullopt;
    case ImageRole::kConvolution: return convolution(node, row);
    case ImageRole::kTransposed: return transposed_convolution(node);
    case ImageRole::kPool: return pool(node, row);
    case ImageRole::kGlobalPool: return global_pool(node);
    case ImageRole::kPerChannel: return per_channel(node, row);
    case ImageRole::kGroups: return group_normalization(node, row);
    case ImageRole::kAxis: return along_axis(node);
    case ImageRole::kListedAxes: return along_listed_axes(node);
    case ImageRole::kExpand: return expand(node);
    case ImageRole::kResize: return resize(node);
  }
  return std::nullopt;
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
