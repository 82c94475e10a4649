#include "onnx_passes/functions/standard_body.h"

#include <algorithm>
#include <numeric>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train {

std::vector<StandardBody> integer_bodies();  // integer_bodies.cc: MatMulInteger, QLinearConv, TfIdfVectorizer, ...

bool has_ranks(const Node& node) {
  return std::all_of(node.inputs().begin(), node.inputs().end(), [](const Value* v) { return !v || v->has_rank(); });
}

Var input(Builder& b, const Node& node, int i) { return node.input(i) ? b.var(node.input(i)) : Var(); }

namespace {

Var number(Builder& b, int64_t value) { return b.scalar(DType::kInt64, static_cast<double>(value)); }

// 0, 1, .. below the only element of `count`, of the type of `like`.
Var counted(Builder& b, Var count, Var like) {
  return cast_like(b.op("Range", {number(b, 0), reshape(count, b.ints({})), number(b, 1)}), like);
}

// [n] as [1.., n, 1..], with `rank` axes.
Var along(Var x, int64_t axis, int64_t rank) {
  std::vector<int64_t> shape(static_cast<size_t>(rank), 1);
  shape[static_cast<size_t>(axis)] = -1;
  return reshape(x, shape);
}

// ---- AffineGrid

int64_t affine_axes(const Node& node) {
  const Value* theta = node.input(0);
  return theta && theta->has_rank() && theta->rank() == 3 ? (*theta->type().dims)[1].value() : 0;
}

bool is_affine_ready(const Node& node) {
  const int64_t axes = affine_axes(node);
  return node.input(1) && (axes == 2 || axes == 3);
}

// grid[n, p, k] = Σ_j theta[n, k, j] place[p, j], where place is the position of p, the innermost axis first, and 1.
// The border is at -1 and 1, which with align_corners are the centers of the outermost pixels. One pixel alone is at 0,
// as in PyTorch. (ONNX's own body squeezes a batch of one away, and divides by zero for one pixel.)
std::vector<Var> affine_grid(Builder& b, const Node& node) {
  const Var theta = input(b, node, 0), size = input(b, node, 1);
  const int64_t axes = affine_axes(node);
  const bool align = node.attr("align_corners", 0) != 0;
  const Var places_shape = concat({slice(size, 2, axes + 2, 0), b.ints({1})}, 0);
  std::vector<Var> columns;
  for (int64_t axis = axes; axis-- > 0;) {
    const Var count = slice(size, axis + 2, axis + 3, 0), length = cast_like(count, theta);
    const Var i = counted(b, count, theta);
    const Var steps = align ? length - 1.0 : length;
    const Var zeros = zeros_like(steps), is_zero = equal(steps, zeros), span = where(is_zero, 1.0 + zeros, steps);
    const Var place = align ? (2.0 * i - steps) / span : (2.0 * i + 1.0 - length) / span;
    columns.push_back(expand(along(place, axis, axes + 1), places_shape));
  }
  columns.push_back(ones_like(columns.back()));
  const Var table = concat(columns, axes), count = b.op("ReduceProd", {places_shape}, {{"keepdims", 1}});
  const Var places = unsqueeze(reshape(table, concat({count, b.ints({axes + 1})}, 0)), {0});
  const Var grid = matmul(places, transpose_last(theta));
  return {reshape(grid, concat({dim(theta, 0), slice(size, 2, axes + 2, 0), b.ints({axes})}, 0))};
}

// ---- DeformConv

bool is_deformable_ready(const Node& node) {
  if (!has_ranks(node) || !find_windows(node)) return false;
  const Dims& dims = *node.input(1)->type().dims;
  return std::all_of(dims.begin(), dims.end(), [](const Dim& d) { return d.known(); });
}

// y[n, o, p] = bias[o] + Σ over c, k of w[o, c, k] mask[n, k, p] x[n, c, p stride + k dilation - pad + offset[n, k, p]]
std::vector<Var> deformable_convolution(Builder& b, const Node& node) {
  const DeformedColumns d = deformed_columns(b, node);
  const Var offset = input(b, node, 2), bias = input(b, node, 3);
  const int64_t axes = offset.rank() - 2;
  const Var products = matmul(d.weight, d.columns), sizes = shape_of(offset);
  const Var y =
      reshape(products, concat({slice(sizes, 0, 1, 0), dim(input(b, node, 1), 0), slice(sizes, 2, axes + 2, 0)}, 0));
  return {bias ? y + along(bias, 1, axes + 2) : y};
}

// ---- Others

bool is_pool_ready(const Node& node) { return has_ranks(node); }

// y = (Σ over space of |x|^p)^(1/p)
std::vector<Var> global_lp_pool(Builder& b, const Node& node) {
  const Var x = input(b, node, 0);
  std::vector<int64_t> axes(static_cast<size_t>(x.rank() - 2));
  std::iota(axes.begin(), axes.end(), 2);
  const int64_t p = node.attr("p", 2);
  if (p == 1 || p == 2) return {b.op(p == 1 ? "ReduceL1" : "ReduceL2", {x, b.ints(axes)})};
  const Var sum = reduce_sum(pow(abs(x), static_cast<double>(p)), axes);
  const Var is_zero = equal(sum, zeros_like(sum));  // where the root has no derivative
  const Var root = pow(where(is_zero, ones_like(sum), sum), 1.0 / static_cast<double>(p));
  return {where(is_zero, zeros_like(sum), root)};
}

bool is_scatter_ready(const Node& node) { return has_ranks(node); }

// present = past, but update from position write_indices[n] of an axis on; in the mode circular, around its end.
std::vector<Var> tensor_scatter(Builder& b, const Node& node) {
  const Var past = input(b, node, 0), update = input(b, node, 1), begin = input(b, node, 2);
  const int64_t rank = past.rank(), given = node.attr("axis", -2), axis = given < 0 ? given + rank : given;
  Var places = along(b.op("Range", {number(b, 0), reshape(dim(update, axis), b.ints({})), number(b, 1)}), axis, rank);
  if (begin) places = places + along(begin, 0, rank);
  if (std::string(node.attr("mode", "linear")) == "circular") places = b.op("Mod", {places, dim(past, axis)});
  return {b.op("ScatterElements", {past, expand(places, shape_of(update)), update}, {{"axis", axis}})};
}

bool uses_batch(const Node& node) { return node.attr("training_mode", 0) != 0 && has_ranks(node); }

// In training_mode: y by the statistics of the batch, and running' = running momentum + batch (1 - momentum)
std::vector<Var> batch_normalization(Builder& b, const Node& node) {
  const auto momentum = static_cast<double>(node.attr("momentum", 0.9f));
  std::vector<Var> y = call(b, "BatchNormalizationTrain", 3, {input(b, node, 0), input(b, node, 1), input(b, node, 2)},
                            {{"epsilon", node.attr("epsilon", 1e-5f)}});
  for (int i = 1; i < 3; ++i) {
    const Var running = input(b, node, i + 2);
    const Var kept = running * momentum;
    y[static_cast<size_t>(i)] = kept + cast_like(y[static_cast<size_t>(i)], running) * (1 - momentum);
  }
  return y;
}

// A tensor is there; a value that may be absent has no element type.
bool is_tensor(const Node& node) {
  return node.num_inputs() > 0 && node.input(0) && node.input(0)->dtype() != DType::kUndefined;
}
bool is_tensor_or_none(const Node& node) { return node.num_inputs() == 0 || !node.input(0) || is_tensor(node); }

std::vector<Var> get_element(Builder& b, const Node& node) { return {b.op("Identity", {input(b, node, 0)})}; }
std::vector<Var> has_element(Builder& b, const Node& node) {
  return {b.op("Identity", {b.scalar(DType::kBool, is_tensor(node) ? 1 : 0)})};
}

const std::vector<StandardBody>& standard_bodies() {
  static const std::vector<StandardBody> all = [] {
    std::vector<StandardBody> bodies = {
        {"AffineGrid", is_affine_ready, affine_grid},
        {"BatchNormalization", uses_batch, batch_normalization},
        {"DeformConv", is_deformable_ready, deformable_convolution},
        {"GlobalLpPool", is_pool_ready, global_lp_pool},
        {"OptionalGetElement", is_tensor, get_element},
        {"OptionalHasElement", is_tensor_or_none, has_element},
        {"TensorScatter", is_scatter_ready, tensor_scatter},
    };
    for (const StandardBody& body : integer_bodies()) bodies.push_back(body);
    return bodies;
  }();
  return all;
}

}  // namespace

bool has_standard_body(std::string_view op) {
  const auto& bodies = standard_bodies();
  return std::any_of(bodies.begin(), bodies.end(), [&](const StandardBody& body) { return op == body.op; });
}

const StandardBody* find_standard_body(const Node& node) {
  if (!node.domain().empty()) return nullptr;
  for (const StandardBody& body : standard_bodies()) {
    if (node.op() == body.op) return body.is_ready(node) ? &body : nullptr;
  }
  return nullptr;
}

Attrs deformed_sampling() {
  return {{"mode", "linear"}, {"padding_mode", "zeros"}, {"align_corners", 0}, {"normalized", 0}};
}

DeformedColumns deformed_columns(Builder& b, const Node& node) {
  const Var x = input(b, node, 0), w = input(b, node, 1), offset = input(b, node, 2), mask = input(b, node, 4);
  const Windows windows = *find_windows(node);
  const int64_t axes = x.rank() - 2, taps = num_elements(windows.kernel), groups = node.attr("group", 1);
  const int64_t offset_groups = node.attr("offset_group", 1), outs = (*w.type().dims)[0].value();
  const int64_t rows = (*w.type().dims)[1].value() * taps;
  const Var batch = dim(x, 0) * b.ints({offset_groups});
  const Var places = slice(shape_of(offset), 2, axes + 2, 0);

  // Coordinates of axis k: [N G, K, O...].
  const Var offsets = reshape(offset, concat({batch, b.ints({taps, axes}), places}, 0));
  std::vector<Var> coordinates;
  int64_t inner = taps;
  for (int64_t k = 0; k < axes; ++k) {
    const auto at = static_cast<size_t>(k);
    inner /= windows.kernel[at];
    Tensor of_taps(x.dtype(), {taps});
    for (int64_t t = 0; t < taps; ++t) {
      of_taps.set(t,
                  static_cast<double>(t / inner % windows.kernel[at] * windows.dilations[at] - windows.pads_begin[at]));
    }
    const Var windows_at = counted(b, dim(offset, k + 2), x) * static_cast<double>(windows.strides[at]);
    const Var taps_at = along(b.constant(of_taps), 1, axes + 2);
    const Var base = taps_at + along(windows_at, k + 2, axes + 2);
    coordinates.insert(coordinates.begin(), unsqueeze(gather(offsets, number(b, k), 2) + base, {axes + 2}));
  }

  DeformedColumns d;
  d.points = axes == 1 ? coordinates[0] : concat(coordinates, axes + 2);
  d.x = reshape(x, concat({batch, dim(x, 1) / b.ints({offset_groups}), slice(shape_of(x), 2, axes + 2, 0)}, 0));
  d.sampled = call(b, "SampleImage", {d.x, d.points}, deformed_sampling());
  Var columns = d.sampled;
  if (mask) {
    d.mask = reshape(mask, concat({batch, b.ints({1, taps}), places}, 0));
    columns = columns * d.mask;
  }
  const Var count = b.op("ReduceProd", {places}, {{"keepdims", 1}});
  d.columns = reshape(columns, concat({dim(x, 0), b.ints({groups, rows}), count}, 0));
  d.weight = reshape(w, b.ints({groups, groups > 0 ? outs / groups : 0, rows}));
  return d;
}

}  // namespace onnx_train
