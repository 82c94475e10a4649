#include "kernels/geometry/reductions.h"

#include "kernels/dispatch.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

// Without `axes`, all are reduced unless the node says that none are.
std::vector<bool> marked_axes(const Node& node, int64_t rank, const Tensor& axes) {
  const bool none_listed = axes.empty() || axes.size() == 0;
  std::vector<bool> marked(static_cast<size_t>(rank), none_listed && node.attr("noop_with_empty_axes", 0) == 0);
  if (none_listed) return marked;
  for (int64_t axis : axes.to_ints()) marked[static_cast<size_t>(normalize_axis(axis, rank))] = true;
  return marked;
}

}  // namespace

std::vector<bool> reduced_axes(const NodeSpec& spec) {
  const int64_t rank = static_cast<int64_t>(spec.in_shape(0).size());
  return marked_axes(spec.node(), rank, spec.is_constant(1) ? spec.constant(1) : Tensor());
}

std::optional<std::vector<bool>> reduced_axes(const Node& node) {
  const Tensor axes = constant_of(node.input(1));
  if (node.input(1) && axes.empty()) return std::nullopt;
  return marked_axes(node, node.input(0)->rank(), axes);
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

bool knows_reduced_axes(const NodeSpec& spec) { return !spec.has_input(1) || spec.is_constant(1); }

bool reduces_numbers(const NodeSpec& spec) { return knows_reduced_axes(spec) && is_numeric(spec.in_type(0)); }

bool reduces_ordered(const NodeSpec& spec) {
  return knows_reduced_axes(spec) && (is_numeric(spec.in_type(0)) || spec.in_type(0) == DType::kBool);
}

}  // namespace onnx_train
