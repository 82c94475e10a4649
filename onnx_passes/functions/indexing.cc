// Gradients of Gather and Slice: where the elements came from gets what went on from them, the rest gets zeros.
#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

// dx[.., i, ..] = Σ over the places p with indices[p] = i of dy[.., p, ..]; `shape` is x's. Indices may be negative;
// `axis` is not. A kernel adds the places in their order.
Term gather_grad(Body& f, const Term& dy, const Term& indices, const Term& sizes) {
  const Term begin = reshape(f.attribute("axis"), {1}), after = begin + 1;
  const Term outer = reduce_prod(slice(sizes, {0}, begin)), inner = reduce_prod(slice(sizes, after, shape(sizes)));
  const Term flat = reshape(indices, {-1});
  const Term rows_shape = concat({outer, shape(flat), inner}, 0);
  const Term places = expand(unsqueeze(flat, {1}), rows_shape);
  const Term none = zeros(concat({outer, slice(sizes, begin, after), inner}, 0), dy);
  return reshape(scatter_add(none, places, reshape(dy, rows_shape), 1), sizes);
}

// dx = zeros of `shape`, with dy where Slice took x's elements from.
Term slice_grad(Body& f) {
  const Term sizes = f.input("shape"), dy = f.input("dy"), size = reduce_prod(sizes, /*keepdims=*/false);
  const Term grid = reshape(range(size), sizes);
  const Term taken = f.op("Slice", {grid, f.input("starts"), f.input("ends"), f.input("axes"), f.input("steps")});
  const Term none = zeros(reshape(size, {-1}), dy);
  return reshape(f.op("ScatterElements", {none, reshape(taken, {-1}), reshape(dy, {-1})}), sizes);
}

}  // namespace

std::vector<FunctionRow> indexing_functions() {
  return {
      function("GatherGrad <axis: int = 0> (dy, indices, int64 shape) => (dx)", gather_grad),
      function("SliceGrad (dy, int64 shape, starts, ends, axes, steps) => (dx)", slice_grad),
  };
}

}  // namespace onnx_train
