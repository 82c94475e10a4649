#include "kernels/lowering/memory/pieces.h"

#include <algorithm>
#include <numeric>

#include "kernels/lowering/memory/lifetimes.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

bool is_static(const Value* value) { return value && value->type().is_static(); }

// Whether a box of this shape is contiguous in the whole: it is complete along all axes after its first of size > 1.
bool is_stretch(const Shape& piece, const Shape& whole) {
  if (piece.size() != whole.size()) return false;
  if (num_elements(piece) == 0) return true;
  int64_t outer = 1;
  for (size_t k = 0; k < whole.size(); ++k) {
    if (outer != 1 && piece[k] != whole[k]) return false;
    outer *= piece[k];
  }
  return true;
}

// Returns the offsets of pieces that are consecutive in memory.
std::vector<size_t> in_order(const std::vector<Value*>& pieces, const Value* whole) {
  if (!is_static(whole)) return {};
  std::vector<size_t> offsets;
  size_t offset = 0;
  for (const Value* piece : pieces) {
    if (!is_static(piece) || !is_stretch(piece->type().shape(), whole->type().shape())) return {};
    offsets.push_back(offset);
    offset += bytes_of(*piece);
  }
  return offsets;
}

// Returns the elements of an integer input, or `otherwise` if absent; sets `known` to false if it is not constant.
std::vector<int64_t> ints_of(const Node& node, int input, std::vector<int64_t> otherwise, bool* known) {
  const Value* value = node.input(input);
  if (!value) return otherwise;
  *known = *known && value->is_initializer() && !node.graph().is_input(value);
  return *known ? constant_of(value).to_ints() : otherwise;
}

std::vector<size_t> slice_offset(const Node& node) {
  const Value *whole = node.input(0), *piece = node.output();
  if (!is_static(whole) || !is_static(piece)) return {};
  const Shape shape = whole->type().shape();
  bool known = is_stretch(piece->type().shape(), shape);
  const std::vector<int64_t> starts = ints_of(node, 1, {}, &known);
  std::vector<int64_t> all(starts.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> axes = ints_of(node, 3, all, &known);
  const std::vector<int64_t> steps = ints_of(node, 4, std::vector<int64_t>(starts.size(), 1), &known);
  const bool forward = std::all_of(steps.begin(), steps.end(), [](int64_t step) { return step == 1; });
  if (!known || !forward || axes.size() != starts.size()) return {};
  if (bytes_of(*piece) == 0) return {0};
  size_t offset = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto axis = static_cast<size_t>(normalize_axis(axes[i], static_cast<int64_t>(shape.size())));
    const int64_t start = std::clamp<int64_t>(starts[i] < 0 ? starts[i] + shape[axis] : starts[i], 0, shape[axis]);
    const Shape inner(shape.begin() + static_cast<int64_t>(axis) + 1, shape.end());
    offset += static_cast<size_t>(start * num_elements(inner)) * size_of(whole->dtype());
  }
  return {offset};
}

}  // namespace

std::vector<size_t> piece_offsets(const Node& node) {
  if (node.is("Slice")) return slice_offset(node);
  if (node.is("Split")) return in_order(node.outputs(), node.input(0));
  if (node.is("Concat")) return in_order(node.inputs(), node.output());
  return {};
}

}  // namespace onnx_train
