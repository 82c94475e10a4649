#include "kernels/geometry/attention.h"

#include <algorithm>
#include <numeric>

#include "kernels/geometry/strides.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// `permutation[i]` is the axis in memory of axis i of the matrices.
Heads heads_of(const NodeSpec& spec, const Shape& memory, const Shape& permutation) {
  Shape sorted = permutation, axes(memory.size());
  std::iota(axes.begin(), axes.end(), 0);
  std::sort(sorted.begin(), sorted.end());
  if (sorted != axes || axes.size() < 2) fail(spec.node().label(), ": its permutations do not fit its operands");
  const Shape strides = row_major_strides(memory);
  const auto at = [&](const Shape& of, size_t i) { return of[static_cast<size_t>(permutation[i])]; };
  const size_t batch = memory.size() - 2;
  Heads heads{{}, {}, {0}, at(memory, batch), at(memory, batch + 1), at(strides, batch), false};
  heads.in_rows = at(strides, batch + 1) == 1 || heads.width == 1;
  for (size_t axis = 0; axis < batch; ++axis) {
    std::vector<int64_t> starts;
    for (const int64_t start : heads.starts) {
      for (int64_t i = 0; i < at(memory, axis); ++i) starts.push_back(start + i * at(strides, axis));
    }
    heads.batch.push_back(at(memory, axis));
    heads.batch_strides.push_back(at(strides, axis));
    heads.starts = std::move(starts);
  }
  return heads;
}

// Whether batches agree and the inner dimensions of both products fit.
bool fit(const AttentionOperands& a) {
  return a.q.batch == a.k.batch && a.q.batch == a.v.batch && a.q.width == a.k.width && a.k.rows == a.v.rows;
}

bool is_like(const Heads& heads, const Heads& batch, int64_t rows, int64_t width) {
  return heads.in_rows && heads.batch == batch.batch && heads.rows == rows && heads.width == width;
}

// Elements of the highest scores and of the sums: one for each query.
int64_t num_queries(const AttentionOperands& a) { return static_cast<int64_t>(a.q.starts.size()) * a.q.rows; }

// Whether the first `inputs` inputs and all outputs are there and of these types. The highest scores and the sums are
// `computed`; everything else may be stored.
bool are_of(const NodeSpec& spec, const AttentionTypes& types, int inputs) {
  const auto fits = [&](DType dtype, bool is_statistic) {
    return dtype == types.computed || (!is_statistic && dtype == types.stored);
  };
  const bool backward = inputs > 3;
  for (int i = 0; i < inputs; ++i) {
    if (!spec.has_input(i) || !fits(spec.in_type(i), i > 4) || spec.in_size(i) == 0) return false;
  }
  for (int i = 0; i < 3; ++i) {
    if (!spec.has_output(i) || !fits(spec.out_type(i), !backward && i > 0) || spec.out_size(i) == 0) return false;
  }
  return true;
}

// The mask's shape, extended with leading 1s to the rank of the scores.
Shape padded(Shape mask, size_t rank) {
  mask.insert(mask.begin(), rank - mask.size(), 1);
  return mask;
}

bool supports_mask(const NodeSpec& spec, int i, DType computed, const AttentionOperands& attention) {
  if (!spec.has_input(i)) return true;
  const size_t rank = attention.q.batch.size() + 2;
  if (spec.in_type(i) != computed && spec.in_type(i) != DType::kBool) return false;
  if (spec.in_shape(i).size() > rank || spec.in_shape(i).empty()) return false;
  const Shape mask = padded(spec.in_shape(i), rank);
  for (size_t axis = 0; axis + 2 < rank; ++axis) {
    if (mask[axis] != 1 && mask[axis] != attention.q.batch[axis]) return false;
  }
  return (mask[rank - 2] == 1 || mask[rank - 2] == attention.q.rows) && mask[rank - 1] == attention.k.rows;
}

}  // namespace

Heads heads_of_input(const NodeSpec& spec, int i, const char* attribute) {
  return heads_of(spec, spec.in_shape(i), spec.node().attr(attribute, Shape{}));
}

Heads heads_of_output(const NodeSpec& spec, int i, const char* attribute) {
  const Shape to_memory = spec.node().attr(attribute, Shape{});
  Shape from_memory(to_memory.size());
  for (size_t axis = 0; axis < to_memory.size(); ++axis) {
    const auto to = static_cast<size_t>(to_memory[axis]);
    if (to < from_memory.size()) from_memory[to] = static_cast<int64_t>(axis);
  }
  return heads_of(spec, spec.out_shape(i), from_memory);
}

AttentionOperands attention_operands(const NodeSpec& spec, int first) {
  AttentionOperands attention;
  attention.q = heads_of_input(spec, first, "perm_q");
  attention.k = heads_of_input(spec, first + 1, "perm_k");
  attention.v = heads_of_input(spec, first + 2, "perm_v");
  attention.scale = spec.node().attr("scale", 1.0f);
  attention.nan_safe = spec.node().attr("guarded", 0) != 0;
  return attention;
}

MaskLayout mask_of(const NodeSpec& spec, int i, const AttentionOperands& attention) {
  MaskLayout layout;
  if (!spec.has_input(i)) return layout;
  layout.kind = spec.in_type(i) != DType::kBool          ? MaskKind::kAdded
                : spec.node().attr("keeps_true", 0) != 0 ? MaskKind::kKeptWhereTrue
                                                         : MaskKind::kKeptWhereFalse;
  layout.fill = spec.node().attr("fill", 0.0f);
  const Shape& batch = attention.q.batch;
  const Shape mask = padded(spec.in_shape(i), batch.size() + 2);
  layout.rows = mask[batch.size()];
  layout.columns = mask[batch.size() + 1];
  layout.plane = {0};
  layout.planes = 1;
  for (size_t axis = 0; axis < batch.size(); ++axis) {
    std::vector<int64_t> planes;
    for (const int64_t plane : layout.plane) {
      for (int64_t at = 0; at < batch[axis]; ++at) planes.push_back(plane * mask[axis] + (mask[axis] == 1 ? 0 : at));
    }
    layout.plane = std::move(planes);
    layout.planes *= mask[axis];
  }
  return layout;
}

bool supports_attention(const NodeSpec& spec, const AttentionTypes& types) {
  if (!are_of(spec, types, 3)) return false;
  const AttentionOperands a = attention_operands(spec, 0);
  return fit(a) && a.q.in_rows && a.k.in_rows && a.v.in_rows &&
         is_like(heads_of_output(spec, 0, "perm_y"), a.q, a.q.rows, a.v.width) && spec.out_size(1) == num_queries(a) &&
         spec.out_size(2) == num_queries(a) && supports_mask(spec, 3, types.computed, a);
}

bool supports_attention_gradient(const NodeSpec& spec, const AttentionTypes& types) {
  if (!are_of(spec, types, 7)) return false;
  const AttentionOperands a = attention_operands(spec, 1);
  return fit(a) && a.q.in_rows && a.k.in_rows && a.v.in_rows &&
         is_like(heads_of_input(spec, 0, "perm_dy"), a.q, a.q.rows, a.v.width) &&
         is_like(heads_of_input(spec, 4, "perm_y"), a.q, a.q.rows, a.v.width) && spec.in_size(5) == num_queries(a) &&
         spec.in_size(6) == num_queries(a) && is_like(heads_of_output(spec, 0, "perm_dq"), a.q, a.q.rows, a.q.width) &&
         is_like(heads_of_output(spec, 1, "perm_dk"), a.q, a.k.rows, a.k.width) &&
         is_like(heads_of_output(spec, 2, "perm_dv"), a.q, a.v.rows, a.v.width) &&
         supports_mask(spec, 7, types.computed, a);
}

}  // namespace onnx_train
