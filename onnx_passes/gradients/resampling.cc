// The gradient of Resize, which is linear in its image: one function (functions/resampling.cc) that multiplies by the
// transposed matrices. Roi, scales and sizes have no gradient.
#include <algorithm>

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/resampling.h"

namespace onnx_train {

namespace {

bool is_crop(const Node& node) { return node.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"; }
bool is_stretch(const Node& node) { return node.attr("keep_aspect_ratio_policy", "stretch") == "stretch"; }

// Whether the i-th listed axis certainly stays as it is, whatever the sizes are at run time.
bool is_kept(const Node& node, size_t i, size_t count, int64_t axis) {
  if (is_crop(node)) {
    const Tensor roi = constant_of(node.input(1));
    if (roi.size() != static_cast<int64_t>(2 * count)) return false;
    if (roi.at(static_cast<int64_t>(i)) != 0 || roi.at(static_cast<int64_t>(i + count)) != 1) return false;
  }
  if (resize_has_input(node, 2)) {
    const Tensor scales = constant_of(node.input(2));
    return scales.size() == static_cast<int64_t>(count) && scales.at(static_cast<int64_t>(i)) == 1;
  }
  const Value* y = node.output();
  const auto at = static_cast<size_t>(axis);
  return is_stretch(node) && y->has_rank() && (*y->type().dims)[at].same((*node.input(0)->type().dims)[at]);
}

// The numbers at `places` of a list.
Var pick(Var list, const std::vector<int64_t>& places) {
  const Tensor known = constant_of(list.value());
  if (known.empty()) return gather(list, list.builder().ints(places), 0);
  Tensor picked(known.dtype(), {static_cast<int64_t>(places.size())});
  for (size_t i = 0; i < places.size(); ++i) picked.set(static_cast<int64_t>(i), known.at(places[i]));
  return list.builder().constant(picked);
}

// y = W x along each resized axis    dx = Wᵀ dy
Gradients resize_gradient(Grad& g) {
  const Node& node = g.node();
  const std::vector<int64_t> axes = resize_axes(node, g.x().rank());
  const auto count = static_cast<int64_t>(axes.size());
  std::vector<int64_t> resized, places, bounds;  // the axes, where they are listed, where their regions are
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis = axes[static_cast<size_t>(i)];
    if (is_kept(node, static_cast<size_t>(i), axes.size(), axis)) continue;
    resized.push_back(axis);
    places.push_back(i);
  }
  if (resized.empty()) return g.to(g.dy());
  for (const int64_t begin : {int64_t{0}, count}) {
    for (const int64_t place : places) bounds.push_back(begin + place);
  }
  const bool scaled = resize_has_input(node, 2);
  const Var roi = is_crop(node) ? pick(g.x(1), bounds) : Var();
  const Var scales = scaled ? pick(g.x(2), places) : Var();
  const Var sizes = !scaled && !is_stretch(node) ? pick(g.x(3), places) : Var();
  std::vector<Var> inputs = {g.dy(), shape(g.x()), roi, scales, sizes};
  while (!inputs.back()) inputs.pop_back();
  return g.to(call(g.b(), "ResizeGrad", inputs, resize_attrs(node, resized)));
}

}  // namespace

std::vector<GradientRule> resampling_rules() { return {{"Resize", resize_gradient, Trait::kNone, "", unknown_rank}}; }

}  // namespace onnx_train
