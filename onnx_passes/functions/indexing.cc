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

// y = sum + dx of GatherGrad along axis 0: what a weight gets that is looked up and used otherwise, too. A kernel adds
// the places in their order.
constexpr const char* kAddGatherGrad = R"(
AddGatherGrad (sum, dy, indices) => (y) {
  rest = Constant <value_ints = [-1]> ()
  wide = Cast <to = 7> (indices)
  places = Unsqueeze (wide, rest)
  y = ScatterND <reduction = "add"> (sum, places, dy)
}
)";

// GatherGrad along axis 0 of a tensor of `shape` without the rows that nothing is added to: rows[p], as wide as those
// of the tensor, is what row places[p] gets. Of the places that name one row the first has the sum. The others have
// zeros, and name the row as it is counted from the end: places[p] < 0. A kernel adds the places in their order.
constexpr const char* kCoalesceRows = R"(
CoalesceRows (dy, indices, shape) => (rows, places) {
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  rest = Constant <value_ints = [-1]> ()
  rank = Shape (shape)
  size = Slice (shape, zero, one)
  row_shape = Slice (shape, one, rank)
  wide = Cast <to = 7> (indices)
  flat_indices = Reshape (wide, rest)
  count = Shape (flat_indices)
  is_negative = Less (flat_indices, zero)
  wrapped = Add (flat_indices, size)
  from_start = Where (is_negative, wrapped, flat_indices)
  begin = Constant <value_int = 0> ()
  step = Constant <value_int = 1> ()
  end = Squeeze (count)
  order = Range (begin, end, step)
  none = Expand (count, size)
  firsts = ScatterElements <axis = 0, reduction = "min"> (none, from_start, order)
  first = Gather (firsts, from_start)
  rows_shape = Concat <axis = 0> (count, row_shape)
  flat_dy = Reshape <allowzero = 1> (dy, rows_shape)
  zeros_float = ConstantOfShape (rows_shape)
  zeros = CastLike (zeros_float, dy)
  column = Unsqueeze (first, rest)
  rows = ScatterND <reduction = "add"> (zeros, column, flat_dy)
  is_first = Equal (first, order)
  from_end = Sub (from_start, size)
  places = Where (is_first, from_start, from_end)
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
      function("AddGatherGrad", kAddGatherGrad),
      function("CoalesceRows", kCoalesceRows),
      function("SliceGrad", kSliceGrad),
  };
}

}  // namespace onnx_train
