#include "kernels/geometry/indexing/boxes.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Movement one_box(std::vector<CopyAxis> axes, int64_t from = 0) { return {{{std::move(axes), 0, from, 0, 0}}}; }

bool movable(const NodeSpec& spec) { return spec.in_type(0) != DType::kString && spec.in_type(0) != DType::kUndefined; }

Movement describe_copy(const NodeSpec& spec) {
  if (spec.in_size(0) != spec.out_size()) {
    fail(spec.node().label(), ": ", to_string(spec.in_shape(0)), " cannot become ", to_string(spec.out_shape()),
         "; the number of elements must stay the same");
  }
  return one_box({{spec.in_size(0), 1, 1}});
}

// y = a tensor of shape `shape` with its axes permuted.
Movement permuted(const Shape& shape, const std::vector<int64_t>& permutation) {
  const Shape from = dense_strides(shape);
  Shape out(shape.size());
  for (size_t k = 0; k < out.size(); ++k) out[k] = shape[static_cast<size_t>(permutation[k])];
  const Shape to = dense_strides(out);
  std::vector<CopyAxis> axes;
  for (size_t k = 0; k < out.size(); ++k) axes.push_back({out[k], from[static_cast<size_t>(permutation[k])], to[k]});
  return one_box(std::move(axes));
}

Movement describe_transpose(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  std::vector<int64_t> reversed;
  for (size_t k = shape.size(); k-- > 0;) reversed.push_back(static_cast<int64_t>(k));
  return permuted(shape, spec.node().attr("perm", reversed));
}

// DCR: the block position is the slow part of the channel; CRD: it is the fast part.
Movement describe_depth_to_space(const NodeSpec& spec) {
  const Shape s = spec.in_shape(0);
  const int64_t n = spec.node().attr("blocksize", 1), channels = s[1] / (n * n);
  if (spec.node().attr("mode", "DCR") == "DCR") {
    return permuted({s[0], n, n, channels, s[2], s[3]}, {0, 3, 4, 1, 5, 2});
  }
  return permuted({s[0], channels, n, n, s[2], s[3]}, {0, 1, 4, 2, 5, 3});
}

Movement describe_space_to_depth(const NodeSpec& spec) {
  const Shape s = spec.in_shape(0);
  const int64_t n = spec.node().attr("blocksize", 1);
  const bool dcr = spec.node().attr("mode", "DCR") == "DCR";
  return permuted({s[0], s[1], s[2] / n, n, s[3] / n, n},
                  dcr ? std::vector<int64_t>{0, 3, 5, 1, 2, 4} : std::vector<int64_t>{0, 1, 3, 5, 2, 4});
}

Movement describe_expand(const NodeSpec& spec) {
  const Shape in = spec.in_shape(0), out = spec.out_shape(0);
  const Shape from = dense_strides(in), to = dense_strides(out);
  const size_t extra = out.size() - in.size();
  std::vector<CopyAxis> axes;
  for (size_t k = 0; k < out.size(); ++k) {
    const bool repeats = k < extra || in[k - extra] == 1;
    axes.push_back({out[k], repeats ? 0 : from[k - extra], to[k]});
  }
  return one_box(std::move(axes));
}

Movement describe_tile(const NodeSpec& spec) {
  const Shape in = spec.in_shape(0), out = spec.out_shape(0);
  const Shape from = dense_strides(in), to = dense_strides(out);
  std::vector<CopyAxis> axes;
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k] == 0) return one_box({{0, 0, 0}});
    if (out[k] % in[k] != 0) fail(spec.node().label(), ": ", to_string(in), " does not tile ", to_string(out));
    axes.push_back({out[k] / in[k], 0, to[k] * in[k]});
    axes.push_back({in[k], from[k], to[k]});
  }
  return one_box(std::move(axes));
}

// The common part of Concat and Split: a part of `size` along the axis within `whole`, both [outer, size, inner].
struct AxisPieces {
  int64_t outer = 1;
  int64_t inner = 1;

  AxisPieces(const Shape& shape, int64_t axis) {
    const auto at = static_cast<size_t>(normalize_axis(axis, static_cast<int64_t>(shape.size())));
    for (size_t k = 0; k < shape.size(); ++k) (k < at ? outer : inner) *= k == at ? 1 : shape[k];
  }
  std::vector<CopyAxis> out_of_whole(int64_t size, int64_t whole) const {
    return {{outer, whole * inner, size * inner}, {size * inner, 1, 1}};
  }
  std::vector<CopyAxis> into_whole(int64_t size, int64_t whole) const {
    return {{outer, size * inner, whole * inner}, {size * inner, 1, 1}};
  }
};

int64_t size_along(const Shape& shape, int64_t axis) {
  return shape[static_cast<size_t>(normalize_axis(axis, static_cast<int64_t>(shape.size())))];
}

Movement describe_concat(const NodeSpec& spec) {
  const int64_t axis = spec.node().attr("axis", 0);
  const AxisPieces pieces(spec.out_shape(), axis);
  const int64_t whole = size_along(spec.out_shape(), axis);
  Movement movement;
  int64_t offset = 0;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    const int64_t size = size_along(spec.in_shape(i), axis);
    movement.copies.push_back({pieces.into_whole(size, whole), i, 0, 0, offset * pieces.inner});
    offset += size;
  }
  return movement;
}

bool supports_concat(const NodeSpec& spec) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i) || spec.in_type(i) != spec.out_type()) return false;
  }
  return movable(spec);
}

// Sizes of the outputs of Split: given by its input, or equal parts, of which the last may be smaller.
std::vector<int64_t> split_sizes(const NodeSpec& spec, int64_t whole) {
  if (spec.is_constant(1)) return spec.constant(1).to_ints();
  const int64_t n = spec.num_outputs(), part = (whole + n - 1) / n;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < n; ++i) sizes.push_back(std::max<int64_t>(std::min(part, whole - i * part), 0));
  return sizes;
}

Movement describe_split(const NodeSpec& spec) {
  const int64_t axis = spec.node().attr("axis", 0);
  const AxisPieces pieces(spec.in_shape(0), axis);
  const int64_t whole = size_along(spec.in_shape(0), axis);
  const std::vector<int64_t> sizes = split_sizes(spec, whole);
  if (sizes.size() != static_cast<size_t>(spec.num_outputs()) ||
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != whole) {
    fail(spec.node().label(), ": pieces of ", to_string(sizes), " do not make an axis of size ", whole);
  }
  Movement movement;
  int64_t offset = 0;
  for (int i = 0; i < spec.num_outputs(); ++i) {
    const int64_t size = sizes[static_cast<size_t>(i)];
    movement.copies.push_back({pieces.out_of_whole(size, whole), 0, offset * pieces.inner, i, 0});
    offset += size;
  }
  return movement;
}

bool supports_split(const NodeSpec& spec) { return movable(spec) && (!spec.has_input(1) || spec.is_constant(1)); }

// The part of x that a Slice reads; `from` traverses x, `to` the slice.
struct SliceBox {
  std::vector<CopyAxis> axes;
  int64_t start = 0;  // offset of the first element, in elements of x
};

// Start and step along one axis.
struct Steps {
  int64_t first = 0;
  int64_t by = 1;
};

std::vector<Steps> slice_steps(const Shape& shape, const Tensor& starts, const Tensor& axes, const Tensor& steps) {
  std::vector<Steps> all(shape.size());
  const std::vector<int64_t> begin = starts.to_ints();
  std::vector<int64_t> axis(begin.size()), step(begin.size(), 1);
  std::iota(axis.begin(), axis.end(), 0);
  if (!axes.empty()) axis = axes.to_ints();
  if (!steps.empty()) step = steps.to_ints();
  if (axis.size() != begin.size() || step.size() != begin.size()) {
    fail("a Slice has ", begin.size(), " starts, ", axis.size(), " axes and ", step.size(), " steps");
  }
  for (size_t i = 0; i < begin.size(); ++i) {
    if (step[i] == 0) fail("step ", i, " of a Slice is 0");
    const auto k = static_cast<size_t>(normalize_axis(axis[i], static_cast<int64_t>(shape.size())));
    const int64_t size = shape[k], first = begin[i] < 0 ? begin[i] + size : begin[i];
    // Clamps a start outside [0, size) to the nearest position from which the steps lead into the tensor.
    all[k] = {step[i] > 0 ? std::clamp<int64_t>(first, 0, size) : std::clamp<int64_t>(first, -1, size - 1), step[i]};
  }
  return all;
}

// `taken` is the shape of the slice.
SliceBox slice_box(const Shape& shape, const Tensor& starts, const Tensor& axes, const Tensor& steps,
                   const Shape& taken) {
  const Shape strides = dense_strides(shape), to = dense_strides(taken);
  const std::vector<Steps> along = slice_steps(shape, starts, axes, steps);
  SliceBox box;
  for (size_t k = 0; k < shape.size(); ++k) {
    const auto [first, by] = along[k];
    // Number of steps from `first` inside the axis; the max() keeps the negation of INT64_MIN from overflowing.
    const int64_t room = by > 0 ? (shape[k] - 1 - first) / by : first / -std::max(by, -INT64_MAX);
    if (taken[k] > 0 && (first < 0 || first >= shape[k] || taken[k] - 1 > room)) {
      fail("a slice of shape ", to_string(taken), " does not fit into ", to_string(shape));
    }
    box.start += first * strides[k];
    box.axes.push_back({taken[k], taken[k] > 1 ? strides[k] * by : 0, to[k]});
  }
  return box;
}

const Tensor& constant_or_empty(const NodeSpec& spec, int i) {
  static const Tensor none;
  return i < spec.num_inputs() ? spec.constant(i) : none;
}

Movement describe_slice(const NodeSpec& spec) {
  SliceBox box = slice_box(spec.in_shape(0), spec.constant(1), constant_or_empty(spec, 3), constant_or_empty(spec, 4),
                           spec.out_shape());
  return one_box(std::move(box.axes), box.start);
}

bool all_constant(const NodeSpec& spec, int first) {
  for (int i = first; i < spec.num_inputs(); ++i) {
    if (spec.has_input(i) && !spec.is_constant(i)) return false;
  }
  return true;
}

// Inputs dy, shape, starts, ends, axes, steps; the body is in functions/indexing.cc.
Movement describe_slice_grad(const NodeSpec& spec) {
  SliceBox box = slice_box(spec.out_shape(), spec.constant(2), spec.constant(4), spec.constant(5), spec.in_shape(0));
  for (CopyAxis& a : box.axes) std::swap(a.from, a.to);
  return {{{std::move(box.axes), 0, 0, 0, box.start}}, true};
}

bool supports_slice(const NodeSpec& spec) { return movable(spec) && all_constant(spec, 1); }

}  // namespace

std::vector<CopyAxis> merge_axes(std::vector<CopyAxis> axes) {
  std::erase_if(axes, [](const CopyAxis& a) { return a.size == 1; });
  std::stable_sort(axes.begin(), axes.end(),
                   [](const CopyAxis& a, const CopyAxis& b) { return std::abs(a.to) > std::abs(b.to); });
  std::vector<CopyAxis> merged;
  for (const CopyAxis& a : axes) {
    if (!merged.empty() && merged.back().from == a.from * a.size && merged.back().to == a.to * a.size) {
      merged.back() = {merged.back().size * a.size, a.from, a.to};
    } else {
      merged.push_back(a);
    }
  }
  return merged;
}

Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t k = shape.size(); k-- > 0;) {
    strides[k] = stride;
    stride *= shape[k];
  }
  return strides;
}

const std::vector<MovementRow>& movement_rows() {
  static const std::vector<MovementRow> all = {
      {"Identity", movable, describe_copy},
      {"BitCast", movable, describe_copy},
      {"Reshape", movable, describe_copy},
      {"Flatten", movable, describe_copy},
      {"Squeeze", movable, describe_copy},
      {"Unsqueeze", movable, describe_copy},
      {"Transpose", movable, describe_transpose},
      {"DepthToSpace", movable, describe_depth_to_space},
      {"SpaceToDepth", movable, describe_space_to_depth},
      {"Expand", movable, describe_expand},
      {"Tile", movable, describe_tile},
      {"Concat", supports_concat, describe_concat},
      {"Split", supports_split, describe_split},
      {"Slice", supports_slice, describe_slice},
      {"SliceGrad", supports_slice, describe_slice_grad, kDomain},
  };
  return all;
}

}  // namespace onnx_train
