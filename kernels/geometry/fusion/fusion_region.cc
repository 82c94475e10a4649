#include "kernels/geometry/fusion/fusion_region.h"

#include <algorithm>

#include "kernels/geometry/reductions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// The longest row. It stays in the cache, and reductions of rows up to this size have one order of summation.
constexpr int64_t kMaxRow = 16384;
constexpr int64_t kMaxOnlyRow = 4096;     // if the space is a single row, which one thread computes
constexpr int64_t kMinTerminalRatio = 8;  // least number of elements per result of a terminal reduction
constexpr int64_t kMaxRank = 12;

bool has_static_shapes(const Node& node) {
  const auto is_static = [](const Value* value) { return !value || value->type().is_static(); };
  return std::all_of(node.inputs().begin(), node.inputs().end(), is_static) &&
         std::all_of(node.outputs().begin(), node.outputs().end(), is_static);
}

// Whether an operand of shape `operand`, broadcast to `out`, has one element for each `row_size` consecutive elements.
bool is_one_per_row(const Shape& operand, const Shape& out, int64_t row_size) {
  if (operand.size() > out.size()) return false;
  const size_t missing = out.size() - operand.size();
  const auto size = [&](size_t d) { return d < missing ? int64_t{1} : operand[d - missing]; };
  size_t d = out.size();
  int64_t inner = 1;
  for (; d > 0 && inner < row_size; --d) {
    if (size(d - 1) != 1) return false;
    inner *= out[d - 1];
  }
  if (inner != row_size) return false;
  for (; d > 0; --d) {
    if (size(d - 1) != out[d - 1]) return false;
  }
  return true;
}

std::optional<ValueExtent> fit_view(const Node& node, const ValueExtentOf& value_extent_of, const Space& space) {
  const auto value_extent = value_extent_of(node.input(0));
  if (value_extent) return *value_extent == ValueExtent::kTerminal ? std::nullopt : value_extent;
  return num_elements_of(*node.output()) == space.size ? std::optional(ValueExtent::kFull) : std::nullopt;
}

bool operand_fits(const Value& operand, std::optional<ValueExtent> at, const Node& node, ValueExtent result,
                  const Space& space) {
  if (!at) return true;
  const bool equal = num_elements_of(operand) == num_elements_of(*node.output());
  switch (*at) {
    case ValueExtent::kFull: return result == ValueExtent::kFull && equal;
    case ValueExtent::kRow:
      return result == ValueExtent::kRow
                 ? equal
                 : is_one_per_row(operand.type().shape(), node.output()->type().shape(), space.row_size);
    case ValueExtent::kTerminal: return false;
  }
  return false;
}

std::optional<ValueExtent> fit_elementwise(const Node& node, const ValueExtentOf& value_extent_of, const Space& space) {
  const int64_t size = num_elements_of(*node.output());
  const bool is_row = space.row_size > 0 && size != space.size && size * space.row_size == space.size;
  if (!is_row && size != space.size) return std::nullopt;
  const ValueExtent result = is_row ? ValueExtent::kRow : ValueExtent::kFull;
  bool inside = false;
  for (int i = 0; i < num_operands(node); ++i) {
    const Value* operand = node.input(i);
    if (!operand) continue;
    const auto at = value_extent_of(operand);
    if (!operand_fits(*operand, at, node, result, space)) return std::nullopt;
    inside = inside || at == ValueExtent::kRow;
  }
  return is_row && !inside ? std::nullopt : std::optional(result);
}

// Returns the number of innermost elements that the reduction reduces to one; 0 if it reduces other axes.
int64_t reduced_row(const Shape& shape, const std::vector<bool>& reduced) {
  int64_t row_size = 1;
  bool kept = false;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    if (reduced[d] && kept) return 0;
    if (reduced[d]) row_size *= shape[d];
    kept = kept || !reduced[d];
  }
  return row_size;
}

std::optional<ValueExtent> fit_reduction(const Node& node, const ValueExtentOf& value_extent_of, Space* space) {
  const auto at = value_extent_of(node.input(0));
  if ((at && *at != ValueExtent::kFull) || num_elements_of(*node.input(0)) != space->size) return std::nullopt;
  const auto axes = reduced_axes(node);
  if (!axes || space->size == num_elements_of(*node.output())) return std::nullopt;
  const int64_t row_size = reduced_row(node.input(0)->type().shape(), *axes);
  const bool short_enough = row_size <= (row_size == space->size ? kMaxOnlyRow : kMaxRow);
  if (row_size == 0 || !short_enough || (space->row_size != 0 && space->row_size != row_size)) {
    // Each piece of the space has accumulators for the whole result.
    const bool much_smaller = num_elements_of(*node.output()) * kMinTerminalRatio <= space->size;
    return much_smaller ? std::optional(ValueExtent::kTerminal) : std::nullopt;
  }
  space->row_size = row_size;
  return ValueExtent::kRow;
}

}  // namespace

int num_operands(const Node& node) {
  return node.is("Expand") || node.is("CastLike") || is_view(node) || is_reduction(node) ? 1 : node.num_inputs();
}

std::optional<ValueExtent> fit(const Node& node, const ValueExtentOf& value_extent_of, Space* space) {
  if (!has_static_shapes(node) || !node.output() || node.output()->rank() > kMaxRank) return std::nullopt;
  Space wanted = *space;
  if (wanted.size == 0) wanted.size = num_elements_of(is_reduction(node) ? *node.input(0) : *node.output());
  if (wanted.size == 0) return std::nullopt;  // empty
  std::optional<ValueExtent> result;
  if (is_view(node)) {
    result = fit_view(node, value_extent_of, wanted);
  } else if (is_reduction(node)) {
    result = fit_reduction(node, value_extent_of, &wanted);
  } else {
    result = fit_elementwise(node, value_extent_of, wanted);
  }
  if (result) *space = wanted;
  return result;
}

std::optional<Space> merge(const Space& a, const Space& b) {
  if (a.size != b.size || (a.row_size != 0 && b.row_size != 0 && a.row_size != b.row_size)) return std::nullopt;
  return Space{a.size, std::max(a.row_size, b.row_size)};
}

}  // namespace onnx_train
