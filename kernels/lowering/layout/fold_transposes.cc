// Folds transposes before and after products into the strides of the products (TransposedMatMul, Gemm's flags).
//
// Between an attention head's transpose and its product, exporters put a scale or a pair of reshapes, and mixed
// precision a cast; the pass first moves the transpose past these. Transposes that move no data become views.
#include <algorithm>
#include <optional>

#include "kernels/functions/functions.h"
#include "kernels/lowering/layout/permutation.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/readers.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

Node* transpose_before(const Value* value) {
  Node* node = value ? value->producer() : nullptr;
  return node && node->is("Transpose") && node->input(0)->has_rank() ? node : nullptr;
}

// Returns an empty permutation if neither the node nor the type of its input gives it.
Permutation permutation_of(const Node& transpose) {
  const Value* x = transpose.input(0);
  Permutation reversed = identity(x->has_rank() ? x->rank() : 0);
  std::reverse(reversed.begin(), reversed.end());
  return transpose.attr("perm", reversed);
}

// Returns a Builder that inserts before `node`.
Builder in_place_of(Node* node) {
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  return b;
}

void replace(Node* node, Var with) {
  node->graph().replace(node->output(), with.value());
  node->graph().remove(node);
}

// transpose(transpose(x)) -> transpose(x)
bool merge_transposes(Node* node) {
  if (!node->is("Transpose")) return false;
  const Node* first = transpose_before(node->input(0));
  if (!first) return false;
  const Permutation inner = permutation_of(*first);
  Permutation both = permutation_of(*node);
  for (int64_t& axis : both) axis = inner[static_cast<size_t>(axis)];
  node->set_input(0, first->input(0));
  node->set_attr("perm", both);
  return true;
}

// scale(transpose(x)) -> transpose(scale(x)), for scalar scales
bool move_behind_scale(Node* node) {
  if (!node->is("Mul") && !node->is("Div")) return false;
  Node* transpose = transpose_before(node->input(0));
  const Value* scale = node->input(1);
  if (!transpose || !is_read_once(node->input(0)) || !scale->type().is_static()) return false;
  if (num_elements(scale->type().shape()) != 1 || scale->rank() > transpose->input(0)->rank()) return false;
  Builder b = in_place_of(node);
  const Var scaled = b.like(*node, {b.var(transpose->input(0)), b.var(node->input(1))})[0];
  replace(node, b.op("Transpose", {scaled}, {{"perm", permutation_of(*transpose)}}));
  return true;
}

// cast(transpose(x)) -> transpose(cast(x))
bool move_behind_cast(Node* node) {
  if (!node->is("Cast")) return false;
  Node* transpose = transpose_before(node->input(0));
  if (!transpose || !is_read_once(node->input(0))) return false;
  Builder b = in_place_of(node);
  const Var made = b.like(*node, {b.var(transpose->input(0))})[0];
  replace(node, b.op("Transpose", {made}, {{"perm", permutation_of(*transpose)}}));
  return true;
}

// Whether the permutation swaps exactly the last two axes.
bool swaps_matrices(const Permutation& permutation) {
  return permutation.size() >= 2 && permutation == swapped(identity(static_cast<int64_t>(permutation.size())));
}

// Replaces reshape(transpose(reshape(x))) by a transpose of x's matrices, if the reshapes only change batch axes.
bool move_out_of_reshapes(Node* node) {
  if (!node->is("Reshape")) return false;
  const Node* transpose = transpose_before(node->input(0));
  const Node* merge = transpose ? transpose->input(0)->producer() : nullptr;
  if (!merge || !merge->is("Reshape") || !swaps_matrices(permutation_of(*transpose))) return false;
  Value* x = merge->input(0);
  if (!x->type().is_static() || !node->output()->type().is_static() || !merge->output()->type().is_static())
    return false;
  const Shape from = x->type().shape(), merged = merge->output()->type().shape();
  Shape to = node->output()->type().shape();
  if (from.size() < 2 || from.size() != to.size()) return false;
  std::swap(to[to.size() - 1], to[to.size() - 2]);
  const bool same_matrices = std::equal(from.end() - 2, from.end(), merged.end() - 2);
  if (from != to || !same_matrices) return false;
  Builder b = in_place_of(node);
  replace(node, transpose_last(b.var(x)));
  return true;
}

// An operand of a product before its transpose, and the permutation that the product must apply.
struct Operand {
  Value* value;
  Permutation permutation;
  bool folded = false;
};

// Folds a transpose unless it moves the innermost axis out of the matrices: products need contiguous rows or columns.
Operand operand(Value* value) {
  const Node* transpose = transpose_before(value);
  if (transpose && value->rank() >= 2) {
    const Permutation permutation = permutation_of(*transpose);
    const int64_t innermost = value->rank() - 1;
    if (permutation[permutation.size() - 1] == innermost || permutation[permutation.size() - 2] == innermost)
      return {transpose->input(0), permutation, true};
  }
  return {value, identity(value->rank())};
}

// Returns the transpose that is the only reader of a product, or null.
Node* transpose_behind(const Value* product) {
  if (!is_read_once(product)) return nullptr;
  Node* reader = product->uses()[0].node;
  return reader->is("Transpose") ? reader : nullptr;
}

// transpose(cast(a b)) -> cast(transpose(a b)): mixed precision rounds the product.
bool move_in_front_of_casts(Node* node) {
  if (!node->is("MatMul")) return false;
  std::vector<Node*> casts;
  Node* reader = only_reader(node->output());
  for (; reader && reader->is("Cast"); reader = only_reader(reader->output())) casts.push_back(reader);
  if (casts.empty() || !reader || !reader->is("Transpose")) return false;
  if (!reader->input(0)->has_rank() || reader->input(0)->rank() < 2) return false;
  const Permutation permutation = permutation_of(*reader);
  if (permutation.back() < std::ssize(permutation) - 2) return false;  // the product cannot apply it
  Builder b = in_place_of(reader);
  Var moved = b.op("Transpose", {b.var(node->output())}, {{"perm", permutation}});
  for (const Node* cast : casts) moved = b.like(*cast, {moved})[0];
  replace(reader, moved);
  for (; !casts.empty(); casts.pop_back()) node->graph().remove(casts.back());
  return true;
}

// A product y = transpose(a b); `y` is the order of its axes in memory.
struct FoldedProduct {
  Operand a, b;
  Permutation y;

  // Transposes the product, yᵀ = bᵀ aᵀ, in the same memory: its rows are the columns of y.
  void transpose() {
    std::swap(a, b);
    a.permutation = swapped(a.permutation);
    b.permutation = swapped(b.permutation);
    const int64_t rank = static_cast<int64_t>(y.size());
    for (int64_t& axis : y) axis = axis >= rank - 2 ? 2 * rank - 3 - axis : axis;
  }
};

bool fold_into_matmul(Node* node) {
  if (!node->is("MatMul")) return false;
  for (const Value* value : {node->input(0), node->input(1), node->output(0)}) {
    if (!value->has_rank() || value->rank() < 2) return false;
  }
  const int64_t rank = node->output()->rank();
  FoldedProduct folded{operand(node->input(0)), operand(node->input(1)), identity(rank)};
  Node* behind = transpose_behind(node->output());
  if (behind) {
    folded.y = permutation_of(*behind);
    if (folded.y.back() == rank - 2) folded.transpose();
    if (folded.y.back() != rank - 1) return false;
  }
  if (!folded.a.folded && !folded.b.folded && !behind) return false;
  Builder b = in_place_of(node);
  const Var y =
      call_lowered(b, "TransposedMatMul", {b.var(folded.a.value), b.var(folded.b.value)},
                   {{"perm_a", folded.a.permutation}, {"perm_b", folded.b.permutation}, {"perm_y", folded.y}});
  replace(behind ? behind : node, y);
  if (behind) node->graph().remove(node);
  return true;
}

// Replaces transpose(a b) by bᵀ aᵀ at the product's position, where its operands die. The transpose of a weight's
// gradient is at the end of the step.
bool fold_behind_gemm(Node* node) {
  if (!node->is("Transpose") || !swaps_matrices(permutation_of(*node))) return false;
  Node* gemm = node->input(0)->producer();
  if (!gemm || !gemm->is("Gemm") || gemm->input(2) || !is_read_once(node->input(0))) return false;
  Builder b(&node->graph(), gemm);
  b.set_name(node->output()->name());
  const Attrs attrs = {{"alpha", gemm->attr("alpha", 1.0f)},
                       {"transA", gemm->attr("transB", 0) == 0},
                       {"transB", gemm->attr("transA", 0) == 0}};
  const Var y = b.op("Gemm", {b.var(gemm->input(1)), b.var(gemm->input(0))}, attrs);
  replace(node, y);
  return true;
}

bool fold_into_gemm(Node* node) {
  if (!node->is("Gemm")) return false;
  bool changed = false;
  const char* flags[] = {"transA", "transB"};
  for (int i = 0; i < 2; ++i) {
    const Node* transpose = transpose_before(node->input(i));
    if (!transpose || !swaps_matrices(permutation_of(*transpose))) continue;
    node->set_input(i, transpose->input(0));
    node->set_attr(flags[i], node->attr(flags[i], 0) == 0);
    changed = true;
  }
  return changed;
}

// Replaces a transpose that moves only axes of size 1, such as that of y of an LSTM with one direction, by a view.
bool view_moved_ones(Node* node) {
  if (!node->is("Transpose") || !node->input(0)->type().is_static()) return false;
  const Shape shape = node->input(0)->type().shape();
  Shape moved;
  int64_t last = 0;
  for (const int64_t axis : permutation_of(*node)) {
    moved.push_back(shape[static_cast<size_t>(axis)]);
    if (moved.back() == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  Builder b = in_place_of(node);
  replace(node, reshape(b.var(node->input(0)), b.ints(moved)));
  return true;
}

}  // namespace

bool fold_transposes(Model& model) {
  bool changed = false;
  // move_behind_cast runs twice, because a rounded value passes two casts. Transposes that casts separated then merge.
  for (auto rewrite :
       {move_out_of_reshapes, merge_transposes, move_behind_scale, move_behind_cast, move_behind_cast, merge_transposes,
        move_in_front_of_casts, fold_into_matmul, fold_into_gemm, fold_behind_gemm, view_moved_ones}) {
    // The reverse order is safe: other nodes that a rewrite removes come after the current node.
    Node* previous = nullptr;
    for (Node* node = model.graph->last(); node; node = previous) {
      previous = node->previous();
      changed = rewrite(node) || changed;
    }
  }
  if (changed) remove_dead_nodes(model);  // dead transposes would count as readers
  return changed;
}

}  // namespace onnx_train
