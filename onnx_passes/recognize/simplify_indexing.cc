// Converts x[:, i, j] with constant i and j, as exporters write it, to a Gather on merged axes.
//
// PyTorch's exporter moves the indexed axes to the front, indexes with GatherND, and moves them back: three passes over
// memory, and as many in the gradient, where the scattered zeros are as large as x. With merged axes it is one Gather
// with flat indices, whose gradient adds rows in place.
#include <algorithm>
#include <numeric>
#include <optional>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/recognize/simplify.h"

namespace onnx_train {
namespace {

using Axes = std::vector<int64_t>;

Axes permutation_of(const Node& transpose, int64_t rank) {
  Axes reversed(static_cast<size_t>(rank));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return transpose.attr("perm", reversed);
}

// The indexed axes of x, which are adjacent: first .. first + sizes.size() - 1.
struct IndexedAxes {
  Value* x;
  int64_t first;
  Shape sizes;
};

// The data input of GatherND is x with the indexed axes moved to the front and the others in order, or x itself.
std::optional<IndexedAxes> find_indexed_axes(Value* data, int64_t count) {
  IndexedAxes found{data, 0, {}};
  if (const Node* node = data->producer(); node && node->is("Transpose") && node->input(0)->has_rank()) {
    found.x = node->input(0);
    const Axes permutation = permutation_of(*node, data->rank());
    found.first = permutation[0];
    Axes expected(static_cast<size_t>(count));
    std::iota(expected.begin(), expected.end(), found.first);
    for (int64_t axis = 0; axis < data->rank(); ++axis) {
      if (axis < found.first || axis >= found.first + count) expected.push_back(axis);
    }
    if (permutation != expected) return std::nullopt;
  }
  for (int64_t i = 0; i < count; ++i) {
    const Dim& size = (*found.x->type().dims)[static_cast<size_t>(found.first + i)];
    if (!size.known()) return std::nullopt;
    found.sizes.push_back(size.value());
  }
  return found;
}

// Row-major positions in the merged axis; empty if an index is out of range.
std::vector<int64_t> flat_indices(const Tensor& indices, const Shape& sizes) {
  const std::vector<int64_t> tuples = indices.to_ints();
  std::vector<int64_t> flat;
  for (size_t at = 0; at < tuples.size(); at += sizes.size()) {
    int64_t position = 0;
    for (size_t k = 0; k < sizes.size(); ++k) {
      const int64_t index = tuples[at + k] < 0 ? tuples[at + k] + sizes[k] : tuples[at + k];
      if (index < 0 || index >= sizes[k]) return {};
      position = position * sizes[k] + index;
    }
    flat.push_back(position);
  }
  return flat;
}

// x's shape with the indexed axes merged: 0 copies a size before them; one size after them may be unknown.
std::optional<Axes> merged_shape(const IndexedAxes& axes) {
  const Dims& dims = *axes.x->type().dims;
  const auto first = static_cast<size_t>(axes.first);
  Axes shape(first, 0);
  shape.push_back(num_elements(axes.sizes));
  int unknown = 0;
  for (size_t i = first + axes.sizes.size(); i < dims.size(); ++i) {
    if (dims[i].known() && dims[i].value() == 0) return std::nullopt;
    unknown += !dims[i].known();
    shape.push_back(dims[i].known() ? dims[i].value() : -1);
  }
  return unknown <= 1 && num_elements(axes.sizes) > 0 ? std::optional(shape) : std::nullopt;
}

// The only reader of `value` if it moves the first axis back to `axis`; the two transposes then cancel.
Node* moved_back(const Value* value, int64_t axis, int64_t rank) {
  if (value->uses().size() != 1 || value->graph().is_output(value)) return nullptr;
  Node* reader = value->uses()[0].node;
  if (!reader->is("Transpose") || &reader->graph() != &value->graph()) return nullptr;
  Axes back(static_cast<size_t>(rank - 1));
  std::iota(back.begin(), back.end(), 1);
  back.insert(back.begin() + axis, 0);
  return permutation_of(*reader, rank) == back ? reader : nullptr;
}

bool gather_merged_axes(Node* node) {
  if (!node->is("GatherND") || node->attr("batch_dims", 0) != 0 || !node->input(0)->has_rank()) return false;
  const Tensor indices = constant_of(node->input(1));
  if (indices.shape().size() != 2 || indices.size() == 0) return false;
  const int64_t count = indices.shape()[1], rank = node->input(0)->rank();
  if (count < 1 || count > rank) return false;
  const auto axes = find_indexed_axes(node->input(0), count);
  const auto shape = axes ? merged_shape(*axes) : std::nullopt;
  const auto flat = axes ? flat_indices(indices, axes->sizes) : std::vector<int64_t>{};
  if (!shape || flat.empty()) return false;
  const int64_t gathered_rank = rank - count + 1;
  Node* back = moved_back(node->output(), axes->first, gathered_rank);
  Node* last = back ? back : node;
  Builder b(&node->graph(), last);
  b.set_name(last->output()->name());
  Var y = b.op("Gather", {reshape(b.var(axes->x), *shape), b.ints(flat)}, {{"axis", axes->first}});
  if (!back && axes->first > 0) {
    Axes to_front(static_cast<size_t>(gathered_rank));
    std::iota(to_front.begin(), to_front.end(), 0);
    std::rotate(to_front.begin(), to_front.begin() + axes->first, to_front.begin() + axes->first + 1);
    y = transpose(y, to_front);
  }
  node->graph().replace(last->output(), y.value());
  node->graph().remove(last);
  if (back) node->graph().remove(node);
  return true;
}

}  // namespace

bool simplify_indexing(Model& model) {
  bool changed = false;
  for (Node *node = model.graph->last(), *previous = nullptr; node; node = previous) {
    previous = node->previous();
    changed = gather_merged_axes(node) || changed;
  }
  return changed;
}

}  // namespace onnx_train
