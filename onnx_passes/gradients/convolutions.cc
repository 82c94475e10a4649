// Gradients of convolutions and pools: one function each (functions/convolutions.cc), with the window's attributes in
// full.
#include <algorithm>
#include <numeric>

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train {
namespace {

std::string unknown_windows(const Node& node) {
  if (find_windows(node)) return "";
  return "its kernel or its padding depends on sizes that are not known; give the model's inputs fixed spatial sizes";
}

std::vector<int64_t> spatial_axes(Var x) {
  std::vector<int64_t> axes;
  for (int64_t axis = 2; axis < x.rank(); ++axis) axes.push_back(axis);
  return axes;
}

// The sum over batch and space.
Var bias_gradient(Var dy) {
  std::vector<int64_t> axes = spatial_axes(dy);
  axes.insert(axes.begin(), 0);
  return reduce_sum(dy, axes, /*keepdims=*/false);
}

Attrs window_attrs(const Windows& w) {
  return {{"strides", w.strides}, {"dilations", w.dilations}, {"pads", w.pads()}};
}

Attrs convolution_attrs(const Node& node) {
  Attrs attrs = window_attrs(*find_windows(node));
  attrs.emplace_back("group", node.attr("group", 1));
  return attrs;
}

// y[n, o, p] = sum over c, k of w[o, c, k] x[n, c, p stride + k dilation - pad] + bias[o]
//     dx: dy spread by w, the transposed convolution;  dw: x correlated with dy;  dbias: sum of dy
Gradients conv_gradient(Grad& g) {
  const Var x = g.x(0), w = g.x(1), dy = g.dy();
  const Attrs attrs = convolution_attrs(g.node());
  Gradients gradients(3);
  if (g.needs(0)) gradients[0] = call(g.b(), "ConvGradInput", {dy, w, shape(x)}, attrs);
  if (g.needs(1)) {
    const auto found = call(g.b(), "ConvGradWeight", g.needs(2) ? 2 : 1, {x, dy, shape(w)}, attrs);
    for (size_t i = 0; i < found.size(); ++i) gradients[i + 1] = found[i];
  } else if (g.needs(2)) {
    gradients[2] = bias_gradient(dy);
  }
  return gradients;
}

// y = the input gradient of the convolution of y's shape with w
//     dx: that convolution of dy;  dw: its weight gradient, with dy for its input and x for its output gradient
Gradients conv_transpose_gradient(Grad& g) {
  const Var x = g.x(0), w = g.x(1), dy = g.dy();
  const Attrs attrs = convolution_attrs(g.node());
  return {g.needs(0) ? g.b().op("Conv", {dy, w}, attrs) : Var(),
          g.needs(1) ? call(g.b(), "ConvGradWeight", {dy, x, shape(w)}, attrs) : Var(),
          g.needs(2) ? bias_gradient(dy) : Var()};
}

// Elements of y behind the last window, which the convolution of dy must not take for another window.
int64_t behind_windows(const Node& node, const Windows& w, size_t axis) {
  if (!node.has_attr("output_shape")) return node.attr("output_padding", Shape(w.kernel.size(), 0)).at(axis);
  const auto size = [axis](const Value* value) { return (*value->type().dims)[axis + 2].value(); };
  const int64_t reached = (size(node.input(0)) - 1) * w.strides[axis] + (w.kernel[axis] - 1) * w.dilations[axis] + 1;
  return size(node.output()) + w.pads_begin[axis] + w.pads_end[axis] - reached;
}

std::string conv_transpose_obstacle(const Node& node) {
  const auto w = find_windows(node);
  if (!w) return unknown_windows(node);
  for (size_t axis = 0; axis < w->strides.size(); ++axis) {
    if (behind_windows(node, *w, axis) >= w->strides[axis])
      return "its output reaches a stride or more behind its windows; make output_padding or output_shape smaller";
  }
  return "";
}

// y = max over the window    dx: dy at the window's first largest element
Gradients max_pool_gradient(Grad& g) {
  if (!g.dy(0)) return {};
  const Windows w = *find_windows(g.node());
  Attrs attrs = window_attrs(w);
  attrs.emplace_back("kernel_shape", w.kernel);
  attrs.emplace_back("ceil_mode", g.node().attr("ceil_mode", 0));
  return {call(g.b(), "MaxPoolGrad", {g.dy(0), g.x()}, attrs)};
}

// y = mean over the window    dx: sum of dy / count over the windows that hold the element
Gradients average_pool_gradient(Grad& g) {
  const Windows w = *find_windows(g.node());
  Attrs attrs = window_attrs(w);
  attrs.emplace_back("kernel_shape", w.kernel);
  attrs.emplace_back("count_include_pad", g.node().attr("count_include_pad", 0));
  return {call(g.b(), "AveragePoolGrad", {g.dy(), shape(g.x())}, attrs)};
}

// y = (sum over the window of |x|^p)^(1/p)    dx = sign(x) |x|^(p-1) times the sum of dy y^(1-p) over the windows
// That sum is the gradient of an average times what it divides by.
Gradients lp_pool_gradient(Grad& g) {
  const Var x = g.x(), y = g.y();
  const auto p = static_cast<double>(g.node().attr("p", 2));
  const Windows w = *find_windows(g.node());
  Attrs attrs = window_attrs(w);
  attrs.emplace_back("kernel_shape", w.kernel);
  attrs.emplace_back("count_include_pad", 1);
  Var share = g.dy();
  if (p != 1) {
    const Var zeros = zeros_like(y), is_zero = equal(y, zeros);
    share = where(is_zero, zeros, share * pow(y, 1 - p));
  }
  const Var sum =
      call(g.b(), "AveragePoolGrad", {share, shape(x)}, attrs) * static_cast<double>(num_elements(w.kernel));
  if (p == 2) return {x * sum};
  const Var direction = sign(x);
  return {p == 1 ? direction * sum : direction * pow(abs(x), p - 1) * sum};
}

std::string lp_pool_obstacle(const Node& node) {
  if (node.attr("ceil_mode", 0) != 0) return "LpPool with ceil_mode has no gradient yet; pad the input instead";
  return unknown_windows(node);
}

// y = zeros, but x at `indices`, counted over [N, C, D...], D = (size of x - 1) stride + kernel - padding    dx = dy
// there An output_shape adds zeros after D on each axis. Indices differ from each other, as those of MaxPool without
// overlap do.
Gradients max_unpool_gradient(Grad& g) {
  const Var x = g.x(0), indices = g.x(1);
  Var dy = g.dy();
  if (g.node().input(2)) {
    const Shape kernel = g.node().attr("kernel_shape", Shape{});
    const auto axes = static_cast<int64_t>(kernel.size());
    const Shape strides = g.node().attr("strides", Shape(kernel.size(), 1));
    Shape rest = kernel;  // kernel - padding
    const Shape pads = g.node().attr("pads", Shape(2 * kernel.size(), 0));
    for (size_t i = 0; i < rest.size(); ++i) rest[i] -= pads[i] + pads[i + rest.size()];
    const Var sizes = (slice(shape(x), 2, 2 + axes, 0) - g.b().ints(Shape(kernel.size(), 1))) * g.b().ints(strides);
    const Var ends = concat({slice(shape(x), 0, 2, 0), sizes + g.b().ints(rest)}, 0);
    Shape all(kernel.size() + 2);
    std::iota(all.begin(), all.end(), 0);
    dy = slice(dy, g.b().ints(Shape(all.size(), 0)), ends, g.b().ints(all));
  }
  return {g.b().op("Gather", {reshape(dy, std::vector<int64_t>{-1}), indices}, {{"axis", 0}})};
}

std::string unknown_columns(const Node& node) {
  if (!constant_of(node.input(1)).empty() && !constant_of(node.input(2)).empty()) return "";
  return "its image_shape or block_shape is not known; give the model's inputs fixed spatial sizes";
}

// y = sum of x[n, c k, o] over the windows o and taps k that meet there    dx = dy there, zeros in the padding
Gradients col2im_gradient(Grad& g) {
  const Shape image = constant_of(g.node().input(1)).to_ints();
  const Windows w = windows_of(g.node(), constant_of(g.node().input(2)).to_ints());
  const Shape windows = w.counts(image);
  const size_t axes = image.size();
  Shape pads(2 * axes + 4, 0);
  std::copy(w.pads_begin.begin(), w.pads_begin.end(), pads.begin() + 2);
  std::copy(w.pads_end.begin(), w.pads_end.end(), pads.end() - static_cast<std::ptrdiff_t>(axes));
  // 0, step, 2 step, ... along one of the axes [taps.., windows..]
  const auto along = [&](size_t axis, int64_t count, int64_t step) {
    const auto number = [&](int64_t value) { return g.b().scalar(DType::kInt64, static_cast<double>(value)); };
    Shape shape(2 * axes, 1);
    shape[axis] = count;
    return reshape(g.b().op("Range", {number(0), number(count * step), number(step)}), g.b().ints(shape));
  };
  Var places;  // in the padded image
  int64_t size = 1;
  for (size_t axis = axes; axis-- > 0;) {
    constexpr int64_t kMost = int64_t{1} << 31;
    if (windows[axis] == 0 || size > kMost || image[axis] > kMost)
      g.refuse("no block fits its image, or the image is too large");
    const Var taps = along(axis, w.kernel[axis], w.dilations[axis] * size);
    const Var of_axis = taps + along(axes + axis, windows[axis], w.strides[axis] * size);
    places = places ? of_axis + places : of_axis;
    size *= image[axis] + w.pads_begin[axis] + w.pads_end[axis];
  }
  const Var padded = reshape(g.b().op("Pad", {g.dy(), g.b().ints(pads)}), std::vector<int64_t>{0, 0, size});
  const Var shown = gather(padded, places, 2);
  return {reshape(shown, shape(g.x()))};
}

// The number of elements of one channel, in x's type.
Var spatial_size(Var x) {
  int64_t known = 1;
  Var unknown;
  for (int64_t axis : spatial_axes(x)) {
    const Dim& size = (*x.type().dims)[static_cast<size_t>(axis)];
    if (size.known()) {
      known *= size.value();
    } else {
      unknown = unknown ? unknown * dim(x, axis) : dim(x, axis);
    }
  }
  const Var factor = x.builder().scalar(x.dtype(), static_cast<double>(known));
  return unknown ? cast_like(unknown, x) * factor : factor;
}

// y = mean over space    dx = dy / count
Gradients global_average_pool_gradient(Grad& g) {
  const Var x = g.x();
  return {expand_like(g.dy() / spatial_size(x), x)};
}

// y = max over space    dx = dy shared by the elements that are the largest
Gradients global_max_pool_gradient(Grad& g) {
  const Var x = g.x();
  const Var largest = cast_like(equal(x, g.y()), x);
  return {largest * (g.dy() / reduce_sum(largest, spatial_axes(x)))};
}

}  // namespace

std::vector<GradientRule> convolution_rules() {
  return {
      {"Conv", conv_gradient, Trait::kNone, "", unknown_windows},
      {"ConvTranspose", conv_transpose_gradient, Trait::kNone, "", conv_transpose_obstacle},
      {"MaxPool", max_pool_gradient, Trait::kNone, "", unknown_windows},
      {"AveragePool", average_pool_gradient, Trait::kNone, "", unknown_windows},
      {"LpPool", lp_pool_gradient, Trait::kNone, "", lp_pool_obstacle},
      {"MaxUnpool", max_unpool_gradient},
      {"Col2Im", col2im_gradient, Trait::kNone, "", unknown_columns},
      {"GlobalAveragePool", global_average_pool_gradient, Trait::kNone, "", unknown_rank},
      {"GlobalMaxPool", global_max_pool_gradient, Trait::kNone, "", unknown_rank},
  };
}

}  // namespace onnx_train
