// Merges the gradients of lookups in many tables, such as the embeddings of a recommendation model, into one node: a
// single gradient takes less time than the launches that sort its indices.
#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "kernels/lowering/gather/side_by_side.h"
#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr size_t kLargestGradient = size_t{4} << 20;  // bytes; larger gradients take longer than the launches
constexpr size_t kMostGradients = size_t{64} << 20;   // bytes alive together

// A tensor, and the types of the casts that follow it, the last one first.
struct CastTensor {
  Value* tensor;
  std::vector<DType> casts;
};

CastTensor before_casts(Value* value) {
  CastTensor found{before_views(value), {}};
  while (const Node* cast = found.tensor->producer()) {
    if (!cast->is("Cast")) break;
    found.casts.push_back(found.tensor->dtype());
    found.tensor = before_views(cast->input(0));
  }
  return found;
}

// Returns the tensors as rows, [tensors, elements], if they are neighbouring pieces of a Split: a part of its input,
// transposed unless the pieces are contiguous.
std::optional<Var> stack_of_pieces(Builder& b, const std::vector<Value*>& tensors) {
  const auto count = std::ssize(tensors);
  Node* const split = tensors[0]->producer();
  if (!split || !split->is("Split")) return std::nullopt;
  const std::vector<Value*>& pieces = split->outputs();
  const auto first = std::find(pieces.begin(), pieces.end(), tensors[0]);
  if (pieces.end() - first < count || !std::equal(tensors.begin(), tensors.end(), first)) return std::nullopt;
  const Shape shape = tensors[0]->type().shape();
  const auto rank = std::ssize(shape);
  const int64_t axis = split->attr("axis", 0) + (split->attr("axis", 0) < 0 ? rank : 0);
  const auto size_of_piece = [=](const Value* piece) { return piece->type().shape()[static_cast<size_t>(axis)]; };
  const int64_t size = size_of_piece(tensors[0]);
  const bool are_there = std::all_of(pieces.begin(), first, [](const Value* piece) { return piece != nullptr; });
  if (!are_there ||
      std::any_of(tensors.begin(), tensors.end(), [&](auto* piece) { return size_of_piece(piece) != size; }))
    return std::nullopt;
  int64_t begin = 0;
  for (auto piece = pieces.begin(); piece != first; ++piece) begin += size_of_piece(*piece);
  const int64_t outer = num_elements(Shape(shape.begin(), shape.begin() + axis)), inner = num_elements(shape) / outer;
  const Var whole = b.var(split->input(0));
  const Var part = std::ssize(pieces) == count ? whole : slice(whole, begin, begin + count * size, axis);
  if (outer == 1) return with_shape(part, {count, inner});
  const Var by_piece = b.op("Transpose", {with_shape(part, {outer, count, inner})}, {{"perm", Shape{1, 0, 2}}});
  return with_shape(by_piece, {count, outer * inner});
}

Var stack(Builder& b, const std::vector<Value*>& tensors) {
  if (const std::optional<Var> stacked = stack_of_pieces(b, tensors)) return *stacked;
  std::vector<Var> rows;
  for (Value* tensor : tensors) rows.push_back(with_shape(b.var(tensor), {1, num_elements(tensor->type().shape())}));
  return concat(rows, int64_t{0});
}

class MergeGradients {
 public:
  MergeGradients(Graph* graph, const Device& device) : graph_(*graph), alignment_(device.piece_alignment()) {}

  bool run() {
    bool changed = false;
    for (const auto& group : side_by_side(
             graph_, [this](const Node& node) { return key_of(node); }, /*moves_readers=*/false)) {
      // Limits the gradients that are alive together.
      const size_t most = std::max<size_t>(kMostGradients / bytes_of(*group[0]->output()), 2);
      for (size_t first = 0; first + 1 < group.size(); first += most) {
        const auto at = [&](size_t i) {
          return group.begin() + static_cast<std::ptrdiff_t>(std::min(i, group.size()));
        };
        merge({at(first), at(first + most)});
        changed = true;
      }
    }
    return changed;
  }

 private:
  std::string key_of(const Node& node) const {
    if (!node.is("GatherGrad", kDomain) || node.attr("axis", 0) != 0 || !has_rows(node.input(0)) ||
        !has_rows(node.input(1)) || !has_rows(node.output()) || graph_.is_output(node.output()))
      return "";
    const size_t bytes = bytes_of(*node.output());
    if (bytes > kLargestGradient || bytes % alignment_ != 0) return "";
    std::string key =
        concat(name(node.output()->dtype()), " ", name(node.input(1)->dtype()), " ",
               to_string(node.output()->type().shape()), " ", num_elements(node.input(1)->type().shape()));
    const CastTensor dy = before_casts(node.input(0));
    for (const DType dtype : dy.casts) key += concat(" ", name(dtype));
    return key + " of " + name(dy.tensor->dtype());
  }

  // Stores all gradients in one tensor, one after the other, and offsets the indices by the first row of their table.
  void merge(std::vector<Node*> gradients) {
    Node* const last = gradients.back();
    sort_by_indices(&gradients);
    const auto count = std::ssize(gradients);
    const Shape table = last->output()->type().shape();
    const int64_t row = row_of(*last->output()), places = num_elements(last->input(1)->type().shape());
    Builder b(&graph_, last);
    b.set_name(last->output()->name() + "/tables");
    const Var dy = stacked_gradients(b, gradients);
    std::vector<Value*> indices;
    for (const Node* node : gradients) indices.push_back(before_views(node->input(1)));
    Tensor first_rows(DType::kInt64, {count, 1});
    for (int64_t t = 0; t < count; ++t) first_rows.set(t, static_cast<double>(t * table[0]));
    const Var index = cast(stack(b, indices), DType::kInt64);
    const Var in_table = where(index < 0.0, index + static_cast<double>(table[0]), index);
    const Var in_tables = reshape(in_table + b.constant(first_rows), b.ints({count * places}));
    const Var all = call_lowered(b, "GatherGrad", {dy, in_tables, b.ints({count * table[0], row})}, {{"axis", 0}});
    const Shape sizes(gradients.size(), table[0]);
    const std::vector<Var> pieces = b.ops("Split", static_cast<int>(count), {all, b.ints(sizes)}, {{"axis", 0}});
    for (size_t t = 0; t < gradients.size(); ++t) {
      b.set_name(gradients[t]->output()->name());
      Value* const piece = with_shape(pieces[t], table).value();
      move_views(gradients[t]->output(), last);
      graph_.replace(gradients[t]->output(), piece);
    }
    for (Node* node : gradients) graph_.remove(node);  // b inserts before one of them
  }

  // Sorts gradients like their indices, if these are pieces of one tensor.
  static void sort_by_indices(std::vector<Node*>* gradients) {
    const auto place = [](const Node* gradient) {
      const Value* indices = before_views(gradient->input(1));
      if (!indices->producer()) return std::ptrdiff_t{0};
      const std::vector<Value*>& pieces = indices->producer()->outputs();
      return std::find(pieces.begin(), pieces.end(), indices) - pieces.begin();
    };
    std::stable_sort(gradients->begin(), gradients->end(),
                     [&](const Node* a, const Node* b) { return place(a) < place(b); });
  }

  // Moves the views of the value before `place`; all other readers follow it.
  void move_views(const Value* value, Node* place) {
    for (const Use& use : std::vector<Use>(value->uses())) {
      if (!is_view(*use.node)) continue;
      graph_.move(use.node, place);
      move_views(use.node->output(), place);
    }
  }

  // Returns the gradients as [tables * places, elements of a row].
  Var stacked_gradients(Builder& b, const std::vector<Node*>& gradients) const {
    std::vector<Value*> tensors;
    std::vector<DType> casts;
    for (const Node* node : gradients) {
      const CastTensor dy = before_casts(node->input(0));
      tensors.push_back(dy.tensor);
      casts = dy.casts;
    }
    Var all = stack(b, tensors);
    for (size_t i = casts.size(); i-- > 0;) all = cast(all, casts[i]);
    const int64_t row = row_of(*gradients[0]->output());
    return with_shape(all, {num_elements(all.type().shape()) / row, row});
  }

  Graph& graph_;
  const size_t alignment_;  // alignment of pieces
};

}  // namespace

bool merge_lookup_gradients(Model& model, const Device& device) {
  const bool changed = MergeGradients(model.graph.get(), device).run();
  if (changed) remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
