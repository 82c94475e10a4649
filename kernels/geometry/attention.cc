#include "kernels/geometry/attention.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/geometry/indexing/strides.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

using enum AttentionTensor;

// The position of a tensor in a node with three operands, and its third of a packed tensor. The attribute maps the axes
// of an operand to those of its matrices, or the axes of a result's matrices to those of the result.
struct TensorRow {
  AttentionTensor tensor;
  NodePlace place;
  const char* permutation;
  int third;  // -1: never packed
};

constexpr TensorRow kForward[] = {{kQ, {false, 0}, "perm_q", 0},
                                  {kK, {false, 1}, "perm_k", 1},
                                  {kV, {false, 2}, "perm_v", 2},
                                  {kY, {true, 0}, "perm_y", -1}};
constexpr TensorRow kBackward[] = {{kDy, {false, 0}, "perm_dy", -1}, {kQ, {false, 1}, "perm_q", 0},
                                   {kK, {false, 2}, "perm_k", 1},    {kV, {false, 3}, "perm_v", 2},
                                   {kY, {false, 4}, "perm_y", -1},   {kDq, {true, 0}, "perm_dq", 0},
                                   {kDk, {true, 1}, "perm_dk", 1},   {kDv, {true, 2}, "perm_dv", 2}};

bool is_backward(const NodeSpec& spec) { return spec.node().op() == "BlockAttentionGrad"; }
bool is_packed(const NodeSpec& spec) { return spec.node().attr("packed", 0) != 0; }

const TensorRow& row_of(const NodeSpec& spec, AttentionTensor tensor) {
  const auto rows = is_backward(spec) ? std::span<const TensorRow>(kBackward) : std::span<const TensorRow>(kForward);
  return *std::find_if(rows.begin(), rows.end(), [&](const TensorRow& row) { return row.tensor == tensor; });
}

// Whether batches and the inner dimensions of both products agree.
bool fit(const AttentionOperands& a) {
  return a.q.batch == a.k.batch && a.q.batch == a.v.batch && a.q.width == a.k.width && a.k.rows == a.v.rows;
}

bool is_like(const Heads& heads, const Heads& batch, int64_t rows, int64_t width) {
  return heads.in_rows && heads.batch == batch.batch && heads.rows == rows && heads.width == width;
}

// Number of highest scores and of sums: one per query.
int64_t num_queries(const AttentionOperands& a) { return static_cast<int64_t>(a.q.starts.size()) * a.q.rows; }

// Whether all operands and results are present, not empty, and of these types.
bool are_of(const NodeSpec& spec, const AttentionTypes& types) {
  const auto rows = is_backward(spec) ? std::span<const TensorRow>(kBackward) : std::span<const TensorRow>(kForward);
  const auto is_of = [&](const NodePlace& place, DType other) {
    const Value* const value = place.of(spec.node());
    return value && num_elements(value->type().shape()) > 0 &&
           (value->dtype() == types.computed || value->dtype() == other);
  };
  const bool backward = is_backward(spec);
  return std::all_of(rows.begin(), rows.end(),
                     [&](const TensorRow& row) { return is_of(place_of(spec, row.tensor), types.stored); }) &&
         is_of({!backward, backward ? 5 : 1}, types.computed) && is_of({!backward, backward ? 6 : 2}, types.computed);
}

// Returns the mask's shape, extended with leading 1s to the rank of the scores.
Shape padded(Shape mask, size_t rank) {
  mask.insert(mask.begin(), rank - mask.size(), 1);
  return mask;
}

bool supports_mask(const NodeSpec& spec, DType computed, const AttentionOperands& attention) {
  const int i = mask_input(spec);
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

// Whether the mask leaves the score at a position of its contents as it is.
bool is_neutral(const MaskLayout& layout, const Tensor& mask, int64_t position) {
  if (layout.selects()) return mask.data<bool>()[position] == (layout.kind == MaskKind::kKeptWhereTrue);
  return mask.dtype() == DType::kFloat ? mask.data<float>()[position] == 0 : mask.at(position) == 0;
}

}  // namespace

NodePlace place_of(const NodeSpec& spec, AttentionTensor tensor) {
  const TensorRow& row = row_of(spec, tensor);
  NodePlace place = row.place;
  if (is_packed(spec) && row.third >= 0) place.index -= row.third;
  return place;
}

int mask_input(const NodeSpec& spec) { return is_backward(spec) ? 7 : 3; }

Heads heads_of(const NodeSpec& spec, AttentionTensor tensor) {
  const TensorRow& row = row_of(spec, tensor);
  const NodePlace place = place_of(spec, tensor);
  const Shape memory = place.of(spec.node())->type().shape();
  // Maps each axis of the matrices to an axis in memory.
  Shape permutation = spec.node().attr(row.permutation, Shape{});
  if (place.is_output) permutation = inverse_permutation(permutation);
  Shape sorted = permutation, axes(memory.size());
  std::iota(axes.begin(), axes.end(), 0);
  std::sort(sorted.begin(), sorted.end());
  if (sorted != axes || axes.size() < 2) fail(spec.node().label(), ": its permutations do not fit its operands");
  const Shape strides = row_major_strides(memory);
  const auto at = [&](const Shape& of, size_t i) { return of[static_cast<size_t>(permutation[i])]; };
  const size_t batch = memory.size() - 2;
  const bool is_third = is_packed(spec) && row.third >= 0;
  if (is_third && (batch == 0 || at(memory, batch - 1) % 3 != 0)) {
    fail(spec.node().label(), ": a packed operand has an axis of heads, a third of which are queries");
  }
  Heads heads{{}, {}, {0}, at(memory, batch), at(memory, batch + 1), at(strides, batch), false};
  heads.in_rows = at(strides, batch + 1) == 1 || heads.width == 1;
  for (size_t axis = 0; axis < batch; ++axis) {
    int64_t size = at(memory, axis), first = 0;
    if (is_third && axis + 1 == batch) {
      size /= 3;
      first = row.third * size * at(strides, axis);
    }
    std::vector<int64_t> starts;
    for (const int64_t start : heads.starts) {
      for (int64_t i = 0; i < size; ++i) starts.push_back(first + start + i * at(strides, axis));
    }
    heads.batch.push_back(size);
    heads.batch_strides.push_back(at(strides, axis));
    heads.starts = std::move(starts);
  }
  return heads;
}

AttentionOperands attention_operands(const NodeSpec& spec) {
  AttentionOperands attention;
  attention.q = heads_of(spec, kQ);
  attention.k = heads_of(spec, kK);
  attention.v = heads_of(spec, kV);
  attention.scale = spec.node().attr("scale", 1.0f);
  attention.nan_safe = spec.node().attr("guarded", 0) != 0;
  attention.hidden = spec.node().attr("hidden", -std::numeric_limits<float>::infinity());
  return attention;
}

MaskLayout mask_of(const NodeSpec& spec, const AttentionOperands& attention) {
  MaskLayout layout;
  const int i = mask_input(spec);
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

Tensor contents_of_mask(const NodeSpec& spec) {
  const int i = mask_input(spec);
  if (!spec.has_input(i)) return {};
  // Passes look for kernels without passing the contents of constants.
  return spec.is_constant(i) ? spec.constant(i) : constant_of(spec.node().input(i));
}

bool hides(const MaskLayout& layout, const Tensor& mask, int64_t position) {
  constexpr float kHidden = -1e28f;
  if (layout.selects())
    return layout.fill <= kHidden && mask.data<bool>()[position] != (layout.kind == MaskKind::kKeptWhereTrue);
  return mask.dtype() == DType::kFloat ? mask.data<float>()[position] <= kHidden : mask.at(position) <= kHidden;
}

VisibleKeys visible_keys(const MaskLayout& layout, const Tensor& mask, const AttentionOperands& attention) {
  if (mask.empty() || layout.kind == MaskKind::kNone || layout.planes != 1) return {};
  VisibleKeys visible;
  for (int64_t query = 0; query < attention.q.rows; ++query) {
    const int64_t row = layout.rows == 1 ? 0 : query * layout.columns;
    int64_t begin = 0, end = layout.columns;
    while (begin < end && hides(layout, mask, row + begin)) ++begin;
    while (begin < end && hides(layout, mask, row + end - 1)) --end;
    if (begin == end) return {};
    bool plain = true;
    for (int64_t key = begin; key < end && plain; ++key) plain = is_neutral(layout, mask, row + key);
    visible.begin.push_back(begin);
    visible.end.push_back(end);
    visible.plain.push_back(plain);
  }
  return visible;
}

std::vector<KeyBlocks> key_blocks(const MaskLayout& layout, const VisibleKeys& visible,
                                  const AttentionOperands& attention, int64_t rows, int64_t columns) {
  const int64_t keys = attention.k.rows;
  std::vector<KeyBlocks> blocks;
  for (int64_t first = 0; first < attention.q.rows; first += rows) {
    int64_t begin = 0, end = keys, plain_begin = 0, plain_end = layout.kind == MaskKind::kNone ? keys : 0;
    if (!visible.begin.empty()) {
      begin = keys, end = 0, plain_end = keys;
      for (int64_t query = first; query < std::min(first + rows, attention.q.rows); ++query) {
        const auto i = static_cast<size_t>(query);
        begin = std::min(begin, visible.begin[i]);
        end = std::max(end, visible.end[i]);
        plain_begin = std::max(plain_begin, visible.begin[i]);
        plain_end = visible.plain[i] ? std::min(plain_end, visible.end[i]) : 0;
      }
    }
    const auto number = [=](int64_t key) { return static_cast<int32_t>(key / columns); };
    blocks.push_back({number(begin), number(end + columns - 1), number(plain_begin + columns - 1), number(plain_end)});
  }
  return blocks;
}

std::vector<BlockRange> query_blocks(const std::vector<KeyBlocks>& keys, int64_t count) {
  std::vector<BlockRange> blocks(static_cast<size_t>(count), BlockRange{0, 0});
  for (int32_t query = 0; query < std::ssize(keys); ++query) {
    const KeyBlocks& seen = keys[static_cast<size_t>(query)];
    for (int32_t key = seen.begin; key < seen.end; ++key) {
      BlockRange& range = blocks[static_cast<size_t>(key)];
      if (range.end == 0) range.begin = query;
      range.end = query + 1;
    }
  }
  return blocks;
}

bool supports_attention(const NodeSpec& spec, const AttentionTypes& types) {
  if (!are_of(spec, types)) return false;
  const AttentionOperands a = attention_operands(spec);
  if (!fit(a) || !a.q.in_rows || !a.k.in_rows || !a.v.in_rows) return false;
  const auto is = [&](AttentionTensor tensor, int64_t rows, int64_t width) {
    return is_like(heads_of(spec, tensor), a.q, rows, width);
  };
  if (!is(kY, a.q.rows, a.v.width) || !supports_mask(spec, types.computed, a)) return false;
  if (!is_backward(spec)) return spec.out_size(1) == num_queries(a) && spec.out_size(2) == num_queries(a);
  return is(kDy, a.q.rows, a.v.width) && spec.in_size(5) == num_queries(a) && spec.in_size(6) == num_queries(a) &&
         is(kDq, a.q.rows, a.q.width) && is(kDk, a.k.rows, a.k.width) && is(kDv, a.k.rows, a.v.width);
}

}  // namespace onnx_train
