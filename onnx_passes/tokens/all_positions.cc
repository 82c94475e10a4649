#include "onnx_passes/tokens/all_positions.h"

#include <algorithm>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr int64_t kNone = -1, kAll = -2;

// 1 at one place of `size`, else 0.
Tensor mark(int64_t size, int64_t place, DType dtype) {
  Tensor marks = Tensor::full(dtype, {size}, 0);
  marks.set(place, 1);
  return marks;
}

}  // namespace

// What has been made is not made again: nodes that are added later come after it.
Value* AllPositions::remembered(const Value* value, int64_t tokens, int64_t keys, const std::function<Value*()>& make) {
  const std::tuple key(value, tokens, keys);
  if (const auto found = made_.find(key); found != made_.end()) return found->second;
  Value* const made = make();
  return made_[key] = made;
}

Value* AllPositions::copy(const Node& node, const std::vector<Value*>& inputs, int output) {
  std::vector<std::string> names;
  for (const Value* value : node.outputs()) names.push_back(value ? graph_.unique_name(value->name() + "_all") : "");
  Node* made = graph_.add_node(node, inputs, names, before_);
  made->mutable_shell().clear_name();
  infer_types(made);
  return made->output(output);
}

Value* AllPositions::all(Value* value) {
  if (!flow_.is_positional(value)) return value;
  return remembered(value, kAll, kAll, [&] { return compute_all(value); });
}

Value* AllPositions::compute_all(Value* value) {
  Node* const node = value->producer();
  if (!node) return value;  // a mask, which has that length
  if (!node->subgraphs().empty()) fail("[Cache] ", node->label(), " computes positions in a subgraph");
  if (reads_shape_only(*node) && flow_.is_stream(node->input(0))) return shape_of_all(node);
  std::vector<Value*> inputs;
  for (Value* input : node->inputs()) inputs.push_back(input ? all(input) : nullptr);
  return copy(*node, inputs, value->output_index());
}

// A stream has the new tokens, and all keys already.
Value* AllPositions::shape_of_all(Node* node) {
  const Value* x = node->input(0);
  const TokenAxes& axes = flow_.of(x);
  if (!node->is("Shape") || axes.merged) fail("[Cache] ", node->label(), " counts the tokens of several texts");
  const int64_t rank = flow_.rank(x), start = node->attr("start", 0), end = node->attr("end", rank);
  const auto clamped = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t from = clamped(start), to = clamped(end);
  if (axes.tokens < from || axes.tokens >= to) return node->output();
  Builder b(&graph_, before_);
  const Var more = b.var(lengths_.past) * b.constant(mark(to - from, axes.tokens - from, DType::kInt64));
  return (b.var(node->output()) + more).value();
}

Value* AllPositions::sizes_with_all(Value* sizes, int64_t place) {
  Builder b(&graph_, before_);
  const int64_t count = flow_.shape_of(sizes).at(0);
  return where(b.constant(mark(count, place, DType::kBool)), b.var(all(sizes)), b.var(sizes)).value();
}

Value* AllPositions::sizes_with(Value* sizes, int64_t rank, int64_t axis, Value* size) {
  const int64_t count = flow_.shape_of(sizes).at(0), place = axis - (rank - count);
  if (axis < 0 || place < 0) return sizes;
  Builder b(&graph_, before_);
  return where(b.constant(mark(count, place, DType::kBool)), b.var(size), b.var(sizes)).value();
}

Value* AllPositions::rows_and_keys(Value* value, int64_t tokens, int64_t keys) {
  return remembered(value, tokens, keys, [&] {
    Value* const taken = tokens >= 0 ? rows(value, tokens) : all(value);
    const bool is_whole = !lengths_.keys && flow_.fixed_length() == 0;
    if (keys < 0 || is_whole) return taken;
    Builder b(&graph_, before_);
    if (lengths_.keys) return gather(b.var(taken), b.var(lengths_.keys), keys).value();
    return slice(b.var(taken), b.ints({0}), b.var(lengths_.total), b.ints({keys})).value();
  });
}

// Of the nodes that compute the value, as many as possible compute the rows alone.
Value* AllPositions::rows(Value* value, int64_t axis) {
  return remembered(value, axis, kAll, [&] {
    const bool is_computed = value->producer() && flow_.is_positional(value);
    if (Value* made = is_computed ? rows_of_inputs(value, axis) : nullptr) return made;
    Builder b(&graph_, before_);
    const Var x = b.var(all(value));
    if (lengths_.rows) return gather(x, b.var(lengths_.rows), axis).value();
    return slice(x, b.var(lengths_.past), b.var(lengths_.total), b.ints({axis})).value();
  });
}

// Of an operand that is broadcast to this rank.
Value* AllPositions::aligned_rows(Value* input, int64_t axis, int64_t rank) {
  const int64_t own = axis - (rank - flow_.rank(input));
  if (!flow_.is_positional(input)) return input;
  return own >= 0 && flow_.is_of_tokens(input, own) ? rows(input, own) : all(input);
}

Value* AllPositions::rows_of_inputs(Value* value, int64_t axis) {
  const Node& node = *value->producer();
  const int64_t rank = flow_.rank(value);
  std::vector<Value*> inputs = node.inputs();
  if (is_elementwise(node) || node.is("Identity")) {
    for (Value*& input : inputs) {
      // A constant of as many rows would have to be cut, too; there is none, since the number of tokens is open.
      if (input) input = aligned_rows(input, axis, rank);
    }
    return copy(node, inputs, value->output_index());
  }
  if (node.is("Gather")) return rows_of_gather(node, axis);
  if (node.is("Expand")) return rows_of_expand(node, axis);
  if (node.is("GatherElements") && normalize_axis(node.attr("axis", 0), rank) == axis)
    return copy(node, {all(inputs[0]), aligned_rows(inputs[1], axis, rank)}, 0);
  if (node.is("Unsqueeze") && flow_.is_positional(inputs[0]) && !constant_of(inputs[1]).empty()) {
    int64_t own = axis;
    for (const int64_t added : constant_of(inputs[1]).to_ints()) own -= normalize_axis(added, rank) < axis ? 1 : 0;
    inputs[0] = rows(inputs[0], own);
    return copy(node, inputs, 0);
  }
  if (node.is("Transpose") && node.has_attr("perm")) {
    inputs[0] = rows(inputs[0], node.attr("perm", std::vector<int64_t>{})[static_cast<size_t>(axis)]);
    return copy(node, inputs, 0);
  }
  if (node.is("Concat") && normalize_axis(node.attr("axis", 0), rank) != axis) {
    for (Value*& input : inputs) input = aligned_rows(input, axis, rank);
    return copy(node, inputs, 0);
  }
  return nullptr;
}

// Rows of a table, at the places of the new tokens alone: there may be fewer than places of keys.
Value* AllPositions::rows_of_gather(const Node& node, int64_t axis) {
  Value *data = node.input(0), *at = node.input(1);
  const int64_t along = normalize_axis(node.attr("axis", 0), flow_.rank(data));
  const int64_t own = axis - along;
  if (own < 0 || own >= flow_.rank(at) || !flow_.is_positional(at)) return nullptr;
  return copy(node, {all(data), rows(at, own)}, 0);
}

Value* AllPositions::rows_of_expand(const Node& node, int64_t axis) {
  Value *x = node.input(0), *sizes = node.input(1);
  const int64_t rank = flow_.rank(node.output());
  if (flow_.shape_of(sizes).at(0) != rank) return nullptr;
  Builder b(&graph_, before_);
  const Var is_row = b.constant(mark(rank, axis, DType::kBool));
  const Var wanted = where(is_row, b.var(lengths_.fresh), b.var(all(sizes)));
  return copy(node, {aligned_rows(x, axis, rank), wanted.value()}, 0);
}

}  // namespace onnx_train
