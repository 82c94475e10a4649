#include "onnx_passes/inference/cut_shapes.h"

#include <algorithm>
#include <cstdint>

#include "onnx_passes/inference/elements.h"

namespace onnx_train {
namespace {

bool is_unknown(const Dim& dim) { return !dim.known() && dim.symbol().empty(); }
bool is_number(const Dim& dim, int64_t number) { return dim.known() && dim.value() == number; }

// The axes that input `index` lists, counted from the start, or else the first `count`; nothing if they are not known.
std::optional<std::vector<size_t>> listed_axes(const Node& node, int index, std::optional<size_t> count) {
  const int64_t rank = node.input(0)->rank();
  std::vector<size_t> axes;
  if (!node.input(index)) {
    for (size_t i = 0; i < count.value_or(0); ++i) axes.push_back(i);
    return count ? std::optional(axes) : std::nullopt;
  }
  const auto listed = elements_of(node.input(index));
  if (!listed) return std::nullopt;
  for (const Dim& axis : *listed) {
    if (!axis.known() || axis.value() < -rank || axis.value() >= rank) return std::nullopt;
    axes.push_back(static_cast<size_t>(axis.value() < 0 ? axis.value() + rank : axis.value()));
  }
  return axes;
}

// The length of a list; nothing if it is not known.
std::optional<size_t> length_of(const Value* list) {
  if (!list->type().is_static() || list->rank() != 1) return std::nullopt;
  return static_cast<size_t>(list->type().shape()[0]);
}

// The output's sizes, with those of the input on axes that are not listed.
Dims kept_sizes(const Node& node, const std::vector<size_t>& axes) {
  const Dims& from = *node.input(0)->type().dims;
  Dims dims = *node.output()->type().dims;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (is_unknown(dims[axis]) && std::ranges::count(axes, axis) == 0) dims[axis] = from[axis];
  }
  return dims;
}

}  // namespace

void refine_slice(Node* node) {
  const Value* x = node->input(0);
  const auto starts = elements_of(node->input(1)), ends = elements_of(node->input(2)),
             steps = elements_of(node->input(4));
  if (!x->has_rank() || x->rank() != node->output()->rank() || !node->input(1)) return;
  const auto axes = listed_axes(*node, 3, length_of(node->input(1)));
  if (!axes || axes->size() > static_cast<size_t>(x->rank())) return;
  Dims dims = kept_sizes(*node, *axes);
  // Slices that take all of a dimension with a symbolic size.
  for (size_t i = 0; starts && ends && i < std::min({axes->size(), starts->size(), ends->size()}); ++i) {
    const Dim &from = (*x->type().dims)[(*axes)[i]], &end = (*ends)[i];
    const bool to_end = end.same(from) || (end.known() && end.value() >= INT32_MAX);
    const bool forward = !node->input(4) || (steps && i < steps->size() && is_number((*steps)[i], 1));
    Dim& to = dims[(*axes)[i]];
    if (is_unknown(to) && is_number((*starts)[i], 0) && to_end && forward) to = from;
  }
  node->output()->set_type({node->output()->dtype(), std::move(dims)});
}

void refine_pad(Node* node) {
  const Value* x = node->input(0);
  if (!x->has_rank() || x->rank() != node->output()->rank()) return;
  const auto axes = listed_axes(*node, 3, static_cast<size_t>(x->rank()));
  if (!axes) return;
  Dims dims = kept_sizes(*node, *axes);
  const auto pads = elements_of(node->input(1));  // before each axis, then after each
  for (size_t i = 0; pads && pads->size() == 2 * axes->size() && i < axes->size(); ++i) {
    const Dim &from = (*x->type().dims)[(*axes)[i]], &before = (*pads)[i], &after = (*pads)[i + axes->size()];
    Dim& to = dims[(*axes)[i]];
    if (!is_unknown(to) || !before.known() || !after.known()) continue;
    int64_t added = 0, size = 0;
    if (__builtin_add_overflow(before.value(), after.value(), &added)) continue;
    if (added == 0) to = from;
    if (from.known() && !__builtin_add_overflow(from.value(), added, &size) && size >= 0) to = size;
  }
  node->output()->set_type({node->output()->dtype(), std::move(dims)});
}

}  // namespace onnx_train
