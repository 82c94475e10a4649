// Functions for the gradient of an embedding and its update, emitted by add_gather_gradients.cc and sparse_updates.cc.
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

Term scatter_rows(const Term& x, const Term& places, const Term& rows) {
  return x.body()->op("ScatterND", {x, places, rows}, "reduction = \"add\"");
}

// y = sum + dx of GatherGrad along axis 0: the gradient of a weight that is looked up and also used otherwise. A kernel
// adds the rows in the order of the indices.
Term add_gather_grad(const Term& sum, const Term& dy, const Term& indices) {
  return scatter_rows(sum, unsqueeze(cast(indices, DType::kInt64), {-1}), dy);
}

// GatherGrad along axis 0 of a tensor of `shape`, without untouched rows: rows[p] is added to row places[p] of the
// tensor and has its width. If several indices name the same row, the first has the sum; the others have zeros and the
// row's index counted from the end, places[p] < 0. A kernel adds the rows in the order of the indices.
Terms coalesce_rows(Body& f, const Term& dy, const Term& indices, const Term& sizes) {
  const Term size = slice(sizes, {0}, {1}), row_shape = slice(sizes, {1}, shape(sizes));
  const Term flat = reshape(cast(indices, DType::kInt64), {-1}), count = shape(flat);
  const Term from_start = where(flat < 0, flat + size, flat), order = range(squeeze(count));
  const Term firsts =
      f.op("ScatterElements", {expand(count, size), from_start, order}, "axis = 0, reduction = \"min\"");
  const Term first = gather(firsts, from_start), rows_shape = concat({count, row_shape}, 0);
  const Term rows = scatter_rows(zeros(rows_shape, dy), unsqueeze(first, {-1}), reshape(dy, rows_shape));
  return {rows, where(equal(first, order), from_start, from_start - size)};
}

// The axes of a row of w, and which of the rows have a place.
Term row_axes(Body& f, const Term& w) { return f.op("Range", {1, squeeze(shape(shape(w))), 1}); }
Term names_row(Body& f, const Term& w, const Term& places) { return unsqueeze(places >= 0, row_axes(f, w)); }

// Sgd without momentum and decay on the rows that CoalesceRows returns:
// w'[places[p]] = w[places[p]] - lr·scale·rows[p]    where places[p] ≥ 0; all other rows do not change
Term sparse_sgd(Body& f, const Term& w, const Term& rows, const Term& places, const Term& learning_rate,
                const Term& grad_scale) {
  const Term change = rows * cast_like(grad_scale, w) * cast_like(learning_rate, w);
  return scatter_rows(w, unsqueeze(places, {-1}), where(names_row(f, w, places), -change, f.as(0, w)));
}

// SparseAdam on the rows that CoalesceRows returns. Rows of zeros do not change, nor do rows without a place.
Terms sparse_adam_rows(Body& f) {
  for (const char* name : {"rows", "exp_avg", "exp_avg_sq"}) f.same_type(name, "w");
  const Term w = f.input("w"), rows = f.input("rows"), places = f.input("places"), column = unsqueeze(places, {-1});
  const Term is_idle = equal(f.op("ReduceL1", {rows, row_axes(f, w)}), 0);
  const Term moves = logical_and(names_row(f, w, places), logical_not(is_idle));
  const auto where_read = [&](const Term& change) { return where(moves, change, 0); };

  const Term beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.number(f.input("step"));
  const Term g = rows * cast_like(f.input("grad_scale"), w);
  const auto change_of = [&](const char* slot, const Term& beta, const Term& x) {
    return where_read((x - gather(f.input(slot), places)) * (1 - beta));
  };
  const Term m_change = change_of("exp_avg", beta1, g), v_change = change_of("exp_avg_sq", beta2, g * g);
  const Term m = gather(f.input("exp_avg"), places) + m_change, v = gather(f.input("exp_avg_sq"), places) + v_change;
  const Term step_size = f.number(f.input("learning_rate")) * sqrt(1 - pow(beta2, t)) / (1 - pow(beta1, t));
  const Term change = m / (sqrt(v) + f.attribute("epsilon")) * step_size;
  return {scatter_rows(w, column, where_read(-change)), scatter_rows(f.input("exp_avg"), column, m_change),
          scatter_rows(f.input("exp_avg_sq"), column, v_change)};
}

}  // namespace

std::vector<FunctionRow> embedding_functions() {
  return {function("AddGatherGrad (sum, dy, indices) => (y)", add_gather_grad),
          function("CoalesceRows (dy, indices, int64 shape) => (rows, places)", coalesce_rows),
          function("SparseSgd (w, rows, int64 places, learning_rate, grad_scale) => (next_w)", sparse_sgd),
          function("SparseAdamRows <beta1, beta2, epsilon> (w, rows, int64 places, exp_avg, exp_avg_sq, int64 step, "
                   "learning_rate, grad_scale) => (next_w, next_exp_avg, next_exp_avg_sq)",
                   sparse_adam_rows)};
}

}  // namespace onnx_train
