#include "onnx_passes/recognize/simplify_slices.h"

#include <algorithm>
#include <optional>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

// SliceGrad (dy, shape, starts, ends, axes, steps) of a slice along one axis with step 1: dy covers [start, end).
struct SliceGradient {
  Value* dy;
  Shape shape;
  int64_t axis, start, end;
};

std::optional<int64_t> single(const Value* value) {
  const Tensor tensor = constant_of(value);
  if (tensor.size() != 1) return std::nullopt;
  return tensor.to_ints()[0];
}

using Varies = std::function<bool(const Value*)>;

std::optional<SliceGradient> piece_of(const Node& node, const Varies& varies) {
  for (int i = 1; i < node.num_inputs(); ++i) {
    if (varies(node.input(i))) return std::nullopt;
  }
  const Tensor shape = constant_of(node.input(1));
  const auto start = single(node.input(2)), end = single(node.input(3));
  const auto axis = single(node.input(4)), step = single(node.input(5));
  if (shape.empty() || !start || !end || !axis || step != 1) return std::nullopt;
  SliceGradient piece{node.input(0), shape.to_ints(), *axis, 0, 0};
  const auto rank = static_cast<int64_t>(piece.shape.size());
  if (piece.axis < 0) piece.axis += rank;
  const int64_t size = piece.shape[static_cast<size_t>(piece.axis)];
  const auto position = [size](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  piece.start = position(*start), piece.end = position(*end);
  return piece;
}

// The pieces whose sum the Add computes; empty if it is another sum.
std::vector<SliceGradient> pieces_of(const Node& add, const Varies& varies) {
  std::vector<SliceGradient> pieces;
  std::vector<const Value*> terms = {add.input(0), add.input(1)};
  while (!terms.empty()) {
    const Value* term = terms.back();
    terms.pop_back();
    const Node* node = term->producer();
    if (!node || term->uses().size() != 1) return {};
    if (node->is("Add")) {
      terms.insert(terms.end(), {node->input(0), node->input(1)});
      continue;
    }
    const auto piece = node->is("SliceGrad", kDomain) ? piece_of(*node, varies) : std::nullopt;
    if (!piece) return {};
    pieces.push_back(*piece);
  }
  return pieces;
}

bool share_out(const std::vector<SliceGradient>& pieces) {
  if (pieces.empty()) return false;
  const SliceGradient &first = pieces.front(), &last = pieces.back();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool follows = pieces[i].start == (i == 0 ? 0 : pieces[i - 1].end) && pieces[i].start < pieces[i].end;
    if (!follows || pieces[i].axis != first.axis || pieces[i].shape != first.shape) return false;
  }
  return last.end == first.shape[static_cast<size_t>(first.axis)];
}

}  // namespace

Value* join_slices(Node* node, const Varies& varies) {
  if (!node->is("Add")) return nullptr;
  const auto& readers = node->output()->uses();
  if (readers.size() == 1 && readers[0].node->is("Add")) return nullptr;  // not the end of its sum
  std::vector<SliceGradient> pieces = pieces_of(*node, varies);
  std::sort(pieces.begin(), pieces.end(),
            [](const SliceGradient& a, const SliceGradient& b) { return a.start < b.start; });
  if (!share_out(pieces)) return nullptr;
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  std::vector<Var> parts;
  for (const SliceGradient& piece : pieces) parts.push_back(b.var(piece.dy));
  return concat(parts, pieces.front().axis).value();
}

}  // namespace onnx_train
