// Rules of operators that move, repeat or leave out elements: linear maps, whose gradient is the transposed map.
// Sizes that are known become constants; the others are read from the tensors at run time.
#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

Var reshape_like(Var v, Var x) { return reshape(v, shape_of(x)); }

namespace {

// y = x with another shape    dx = dy with x's shape
Gradients reshaped(Grad& g) { return g.to(reshape_like(g.dy(), g.x())); }

// y = x without axes of size 1    dx = dy with them
Gradients squeeze_gradient(Grad& g) { return g.x(1) ? g.to(g.b().op("Unsqueeze", {g.dy(), g.x(1)})) : reshaped(g); }

// One 1-D int64 tensor of the parts: a constant when all of them are.
Var join(Builder& b, const std::vector<Var>& parts) {
  std::vector<int64_t> known;
  for (const Var& part : parts) {
    const Tensor constant = constant_of(part.value());
    if (constant.empty()) return concat(parts, int64_t{0});
    for (int64_t v : constant.to_ints()) known.push_back(v);
  }
  return b.ints(known);
}

// y[i] = x[i_p(0), i_p(1), ...]    dx = dy permuted back
Gradients transpose_gradient(Grad& g) {
  const auto permutation = g.node().attr("perm", std::vector<int64_t>{});
  if (permutation.empty()) return g.to(g.b().op("Transpose", {g.dy()}));  // the reversal is its own inverse
  return g.to(transpose(g.dy(), inverse_permutation(permutation)));
}

// y = x repeated r_k times along axis k    dx = Σ over the copies: dy as [r_0, d_0, r_1, d_1, ...], even axes summed
Gradients tile_gradient(Grad& g) {
  const Var x = g.x();
  const int64_t rank = x.rank();
  if (rank == 0) return g.to(g.dy());
  const Tensor repeats = constant_of(g.x(1).value());
  Var split;
  if (x.type().is_static() && !repeats.empty()) {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < rank; ++i) {
      sizes.push_back(repeats.data<int64_t>()[i]);
      sizes.push_back(x.type().shape()[static_cast<size_t>(i)]);
    }
    split = g.b().ints(sizes);
  } else {
    split = reshape(concat({unsqueeze(g.x(1), {1}), unsqueeze(shape(x), {1})}, 1), std::vector<int64_t>{-1});
  }
  std::vector<int64_t> copies;
  for (int64_t i = 0; i < rank; ++i) copies.push_back(2 * i);
  return g.to(reduce_sum(reshape(g.dy(), split), copies, /*keepdims=*/false));
}

// y = [x0, x1, ...] along an axis    dx_i = the i-th piece of dy
Gradients concat_gradient(Grad& g) {
  const int64_t axis = g.node().attr("axis", 0);
  if (g.num_inputs() == 1) return g.to(g.dy());
  std::vector<Var> sizes;
  for (int i = 0; i < g.num_inputs(); ++i) sizes.push_back(dim(g.x(i), axis));
  return g.b().ops("Split", g.num_inputs(), {g.dy(), join(g.b(), sizes)}, {{"axis", axis}});
}

// Zeros in place of output i of a Split, which the model leaves out.
Var zero_piece(Grad& g, int64_t axis, int i) {
  const Var x = g.x();
  std::vector<Var> sizes;
  for (int64_t k = 0; k < x.rank(); ++k) sizes.push_back(dim(x, k));
  Var& along = sizes[static_cast<size_t>(normalize_axis(axis, x.rank()))];
  if (g.x(1)) {
    along = slice(g.x(1), i, i + 1, 0);
  } else {
    const Tensor whole = constant_of(along.value());
    if (whole.empty()) g.refuse("an output without a name has an unknown size; name all of its outputs");
    const int64_t all = whole.data<int64_t>()[0], n = g.num_outputs(), piece = (all + n - 1) / n;
    along = g.b().ints({std::max<int64_t>(std::min(piece, all - i * piece), 0)});
  }
  return full(join(g.b(), sizes), x.dtype(), 0);
}

// [y0, y1, ...] = x along an axis    dx = [dy0, dy1, ...], zeros for outputs that do not reach the loss
Gradients split_gradient(Grad& g) {
  const int64_t axis = g.node().attr("axis", 0);
  std::vector<Var> pieces;
  for (int i = 0; i < g.num_outputs(); ++i) pieces.push_back(g.y(i) ? g.dy_or_zeros(i) : zero_piece(g, axis, i));
  return g.to(pieces.size() == 1 ? pieces[0] : concat(pieces, axis));
}

// y = x[start : end : step]    dx = zeros with dy at these places
Gradients slice_gradient(Grad& g) {
  const Var starts = g.x(1);
  Var axes = g.x(3), steps = g.x(4);
  if ((!axes || !steps) && !starts.type().is_static()) {
    Builder& b = g.b();
    const Var all = b.op("Range", {b.scalar(DType::kInt64, 0), size(starts), b.scalar(DType::kInt64, 1)});
    if (!axes) axes = cast(all, starts.dtype());
    if (!steps) steps = full(shape(starts), starts.dtype(), 1);
  } else if (!axes || !steps) {
    const int64_t n = num_elements(starts.type().shape());
    std::vector<int64_t> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(i);
    if (!axes) axes = g.b().constant(Tensor::ints(all).cast(starts.dtype()));
    if (!steps) steps = g.b().constant(Tensor::full(starts.dtype(), {n}, 1));
  }
  return g.to(call(g.b(), "SliceGrad", {g.dy(), shape_of(g.x()), starts, g.x(2), axes, steps}));
}

// y = x between borders of a constant                       dx = dy without the borders: a Pad by -pads
// y = x between borders of its own elements, axis by axis   dx = Σ of dy at the places that show an element, axis by
//     (reflect, edge, wrap): y = x[map_k] along axis k            axis: GatherGrad of dy with the same map
Gradients pad_gradient(Grad& g) {
  Builder& b = g.b();
  const std::string mode = g.node().attr("mode", "constant");
  const Var x = g.x(), pads = g.x(1), axes = g.x(3);
  if (mode == "constant") {
    const Tensor known = constant_of(pads.value());
    Var opposite;
    if (known.empty()) {
      opposite = -pads;
    } else {
      std::vector<int64_t> negated = known.to_ints();
      for (int64_t& p : negated) p = -p;
      opposite = b.ints(negated);
    }
    const Var dx = b.op("Pad", {g.dy(), opposite, Var(), axes});
    Var dvalue;
    if (g.needs(2)) {
      const Var whole = sum_all(g.dy());
      dvalue = whole - sum_all(dx);
    }
    return g.to({dx, Var(), dvalue});
  }
  std::vector<int64_t> padded;
  if (axes) {
    for (int64_t axis : constant_of(axes.value()).to_ints()) padded.push_back(normalize_axis(axis, x.rank()));
  } else {
    for (int64_t i = 0; i < x.rank(); ++i) padded.push_back(i);
  }
  const Tensor known = constant_of(pads.value());
  const int64_t n = static_cast<int64_t>(padded.size());
  Var dx = g.dy();
  for (int64_t i = n - 1; i >= 0; --i) {
    if (!known.empty() && known.data<int64_t>()[i] == 0 && known.data<int64_t>()[i + n] == 0) continue;
    const int64_t axis = padded[static_cast<size_t>(i)];
    const Var size_along = dim(x, axis);
    const Var places =
        b.op("Range", {b.scalar(DType::kInt64, 0), squeeze(size_along, {0}), b.scalar(DType::kInt64, 1)});
    const Var map = b.op("Pad", {places, gather(pads, b.ints({i, i + n}), 0)}, {{"mode", mode}});
    std::vector<Var> shape_before;
    for (int64_t k = 0; k < x.rank(); ++k) shape_before.push_back(k == axis ? size_along : dim(dx, k));
    dx = call(b, "GatherGrad", {dx, map, join(b, shape_before)}, {{"axis", axis}});
  }
  return g.to(dx);
}

std::string pad_obstacle(const Node& node) {
  if (node.attr("mode", "constant") == "constant" || !node.input(3) || !constant_of(node.input(3)).empty()) return "";
  return "its axes are computed while it runs; make them a constant";
}

// y = blocks of channels laid out in space    dx = the blocks gathered again
Gradients depth_to_space_gradient(Grad& g) {
  const int64_t n = g.node().attr("blocksize", 0);
  if (g.node().attr("mode", "DCR") == "DCR") return g.to(g.b().op("SpaceToDepth", {g.dy()}, {{"blocksize", n}}));
  // CRD: [N, C n n, H, W] -> [N, C, H n, W n]; back by [N, C, H, n, W, n] -> [N, C, n, n, H, W].
  const Var x = g.x(), block = g.b().ints({n});
  const Var split = join(g.b(), {dim(g.dy(), 0), dim(g.dy(), 1), dim(x, 2), block, dim(x, 3), block});
  return g.to(reshape_like(transpose(reshape(g.dy(), split), {0, 1, 3, 5, 2, 4}), x));
}

// y = blocks of space laid out as channels    dx = the blocks laid out in space again
Gradients space_to_depth_gradient(Grad& g) {
  const std::string mode = g.node().attr("mode", "DCR");
  return g.to(g.b().op("DepthToSpace", {g.dy()}, {{"blocksize", g.node().attr("blocksize", 0)}, {"mode", mode}}));
}

// y_i = start + i delta    dstart = Σ dy, ddelta = Σ i dy
Gradients range_gradient(Grad& g) {
  const auto number = [&](double v) { return g.b().scalar(g.dy().dtype(), v); };
  const Var count = cast_like(size(g.y()), g.dy());
  const Var i = g.b().op("Range", {number(0), count, number(1)});
  return g.to({sum_all(g.dy()), Var(), sum_all(g.dy() * i)});
}

}  // namespace

std::vector<GradientRule> shape_rules() {
  return {
      {"Reshape", reshaped},
      {"Flatten", reshaped},
      {"Squeeze", squeeze_gradient},
      // y = x with axes of size 1    dx = dy without them
      {"Unsqueeze",
       [](Grad& g) {
         return g.to(g.b().op("Squeeze", {g.dy(), g.x(1)}));
       }},
      {"Transpose", transpose_gradient},
      // y = x repeated along axes of size 1    dx = Σ over the copies, by the driver
      {"Expand", [](Grad& g) { return g.to(g.dy()); }, Trait::kBroadcasts},
      {"Tile", tile_gradient},
      {"Concat", concat_gradient},
      {"Split", split_gradient},
      {"Slice", slice_gradient},
      {"Pad", pad_gradient, Trait::kNone, "", pad_obstacle},
      {"DepthToSpace", depth_to_space_gradient},
      {"SpaceToDepth", space_to_depth_gradient},
      // y = x on one side of a diagonal, 0 on the other    dx = dy on that side
      {"Trilu",
       [](Grad& g) {
         return g.to(g.b().like(g.node(), {g.dy(), g.x(1)})[0]);
       }},
      // y = the first n_b elements of each sequence reversed    dx = the same of dy
      {"ReverseSequence",
       [](Grad& g) {
         return g.to(g.b().like(g.node(), {g.dy(), g.x(1)})[0]);
       }},
      {"Range", range_gradient},
      {"Shape", nullptr, Trait::kZero},
      {"Size", nullptr, Trait::kZero},
      {"EyeLike", nullptr, Trait::kZero},
      {"Constant", nullptr, Trait::kZero},
      {"ConstantOfShape", nullptr, Trait::kZero},
  };
}

}  // namespace onnx_train
