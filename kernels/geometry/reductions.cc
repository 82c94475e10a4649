#include "kernels/geometry/reductions.h"

#include "kernels/dispatch.h"

namespace onnx_train {
namespace {

bool knows_axes(const NodeSpec& spec) { return !spec.has_input(1) || spec.is_constant(1); }

}  // namespace

std::vector<bool> reduced_axes(const NodeSpec& spec) {
  const int64_t rank = static_cast<int64_t>(spec.in_shape(0).size());
  std::vector<int64_t> axes;
  if (spec.is_constant(1)) axes = spec.constant(1).to_ints();
  const bool all = axes.empty() && spec.node().attr("noop_with_empty_axes", 0) == 0;
  std::vector<bool> reduced(static_cast<size_t>(rank), all);
  for (int64_t axis : axes) reduced[static_cast<size_t>(normalize_axis(axis, rank))] = true;
  return reduced;
}

std::vector<ReductionAxis> merged_reduction_axes(const Shape& shape, const std::vector<bool>& is_reduced) {
  std::vector<ReductionAxis> axes;
  int64_t stride = 1;
  for (size_t k = shape.size(); k-- > 0;) {
    if (shape[k] != 1) {
      const bool merges = !axes.empty() && axes.back().reduced == is_reduced[k];
      if (merges) axes.back().size *= shape[k];
      if (!merges) axes.push_back({shape[k], stride, is_reduced[k]});
    }
    stride *= shape[k];
  }
  return axes;
}

bool reduces_numbers(const NodeSpec& spec) { return knows_axes(spec) && is_numeric(spec.in_type(0)); }

bool reduces_ordered(const NodeSpec& spec) {
  return knows_axes(spec) && (is_numeric(spec.in_type(0)) || spec.in_type(0) == DType::kBool);
}

}  // namespace onnx_train
