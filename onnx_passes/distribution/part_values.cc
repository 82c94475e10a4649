#include "onnx_passes/distribution/part_values.h"

#include <numeric>

#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

// The sizes of x with others in the place of that along `axis`.
Var sizes_with(Var x, int64_t axis, const std::vector<int64_t>& middle) {
  Builder& b = x.builder();
  const Var sizes = shape_of(x);
  std::vector<Var> all;
  if (axis > 0) all.push_back(slice(sizes, 0, axis, 0));
  all.push_back(b.ints(middle));
  if (axis + 1 < x.rank()) all.push_back(slice(sizes, axis + 1, x.rank(), 0));
  return all.size() == 1 ? all[0] : concat(all, 0);
}

const Dim& size_along(Var x, int64_t axis) { return (*x.type().dims)[static_cast<size_t>(axis)]; }

}  // namespace

Var part_of(Var whole, const Cut& cut, const PartOf& rank) {
  const int64_t share = cut.period / rank.parts, begin = rank.part * share;
  const Dim size = size_along(whole, cut.axis);
  if (size.known() && size.value() == cut.period) return slice(whole, begin, begin + share, cut.axis);
  // [.., size, ..] -> [.., runs, period, ..]
  const Var runs =
      reshape(whole, sizes_with(whole, cut.axis, {size.known() ? size.value() / cut.period : -1, cut.period}));
  const Var own = slice(runs, begin, begin + share, cut.axis + 1);
  return reshape(own, sizes_with(whole, cut.axis, {size.known() ? size.value() / rank.parts : -1}));
}

Var gathered(Var own, const Cut& cut, const PartOf& rank) {
  const int64_t share = cut.period / rank.parts;
  const Dim size = size_along(own, cut.axis);
  // [.., size, ..] -> [.., runs, share, ..] -> [parts, .., runs, share, ..] -> [.., runs, parts, share, ..]
  const Var runs = reshape(own, sizes_with(own, cut.axis, {size.known() ? size.value() / share : -1, share}));
  const Var all = call(own.builder(), "AllGather", {runs}, {{"ranks", rank.parts}});
  std::vector<int64_t> order(static_cast<size_t>(all.rank()) - 1);
  std::iota(order.begin(), order.end(), 1);
  order.insert(order.begin() + cut.axis + 1, 0);
  const Var parts = transpose(all, order);
  return reshape(parts, sizes_with(own, cut.axis, {size.known() ? size.value() * rank.parts : -1}));
}

OwnIndices own_indices(Var indices, int64_t size, const PartOf& rank) {
  Builder& b = indices.builder();
  const int64_t share = size / rank.parts;
  const auto number = [&](int64_t value) { return b.scalar(DType::kInt64, static_cast<double>(value)); };
  const auto is_below = [&](Var index, int64_t end) {
    const Var is_natural = index >= number(0);
    return logical_and(is_natural, index < number(end));
  };
  const Var given = cast(indices, DType::kInt64), from_end = given < number(0);
  const Var index = where(from_end, given + number(size), given);
  const Var place = index - number(rank.part * share);
  const Var is_own = is_below(place, share), is_any = is_below(index, size), is_negative = index < number(0);
  const Var is_none = where(is_negative, index - number(size), index);
  return {where(is_own, place, where(is_any, number(0), is_none)), is_own};
}

}  // namespace onnx_train
