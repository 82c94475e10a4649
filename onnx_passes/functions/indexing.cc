// Gradients of Gather and Slice: where the elements came from gets what went on from them, the rest gets zeros.
#include "onnx_passes/functions/functions.h"

namespace onnx_train {

// dx[.., i, ..] = Σ over the places p with indices[p] = i of dy[.., p, ..]; `shape` is x's. Indices may be negative;
// `axis` is not. A kernel adds the places in their order.
constexpr const char* kGatherGrad = R"(
GatherGrad <axis: int = 0> (dy, indices, shape) => (dx) {
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  rest = Constant <value_ints = [-1]> ()
  axis = Constant <value_int: int = @axis> ()
  begin = Reshape (axis, one)
  after = Add (begin, one)
  rank = Shape (shape)
  outer_sizes = Slice (shape, zero, begin)
  inner_sizes = Slice (shape, after, rank)
  outer = ReduceProd <keepdims = 1> (outer_sizes)
  inner = ReduceProd <keepdims = 1> (inner_sizes)
  size = Slice (shape, begin, after)
  flat_indices = Reshape (indices, rest)
  count = Shape (flat_indices)
  rows_shape = Concat <axis = 0> (outer, count, inner)
  rows = Reshape <allowzero = 1> (dy, rows_shape)
  column = Unsqueeze (flat_indices, one)
  places = Expand (column, rows_shape)
  zeros_shape = Concat <axis = 0> (outer, size, inner)
  zeros_float = ConstantOfShape (zeros_shape)
  zeros = CastLike (zeros_float, dy)
  sums = ScatterElements <axis = 1, reduction = "add"> (zeros, places, rows)
  dx = Reshape <allowzero = 1> (sums, shape)
}
)";

// dx = zeros of `shape`, with dy where Slice took x's elements from.
constexpr const char* kSliceGrad = R"(
SliceGrad (dy, shape, starts, ends, axes, steps) => (dx) {
  first = Constant <value_int = 0> ()
  step = Constant <value_int = 1> ()
  rest = Constant <value_ints = [-1]> ()
  size = ReduceProd <keepdims = 0> (shape)
  positions = Range (first, size, step)
  grid = Reshape <allowzero = 1> (positions, shape)
  taken = Slice (grid, starts, ends, axes, steps)
  places = Reshape (taken, rest)
  updates = Reshape (dy, rest)
  zeros_shape = Reshape (size, rest)
  zeros_float = ConstantOfShape (zeros_shape)
  zeros = CastLike (zeros_float, dy)
  flat = ScatterElements (zeros, places, updates)
  dx = Reshape <allowzero = 1> (flat, shape)
}
)";

std::vector<FunctionRow> indexing_functions() {
  return {
      function("GatherGrad", kGatherGrad),
      function("SliceGrad", kSliceGrad),
  };
}

}  // namespace onnx_train
