// Exporters select the columns of a table of categories, or the queries, keys and values of one product, as x[:, 0],
// x[:, 1], .. Each is a Gather that copies, and together they read the memory of x once per entry. With the axis moved
// to the front by a Transpose, each is a contiguous piece of x, and a view where the device can address it.
#include <map>
#include <numeric>
#include <set>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

constexpr int64_t kMostEntries = 4096;  // limit of the axis, as a Split has one output per entry

struct Selection {
  Node* gather;
  int64_t entry;
};

// All Gathers x[.., entry, ..] of one axis.
struct Selections {
  int64_t axis;
  std::vector<Selection> all;

  // Reads x through a gather: if x is itself a selection, it may have been replaced by a piece.
  Value* x() const { return all.front().gather->input(0); }
  int64_t size() const { return x()->type().shape()[static_cast<size_t>(axis)]; }
  bool cover_axis() const {
    std::set<int64_t> entries;
    for (const Selection& selection : all) entries.insert(selection.entry);
    return std::ssize(entries) == size();
  }
};

std::vector<Selections> find_selections(const Graph& graph) {
  std::map<std::pair<size_t, int64_t>, Selections> found;  // by x and axis
  for (Node* node = graph.first(); node; node = node->next()) {
    if (!node->is("Gather") || !node->input(0)->type().is_static() || node->input(0)->rank() == 0) continue;
    const Value* index = node->input(1);
    const Tensor constant = index->has_rank() && index->rank() == 0 ? constant_of(index) : Tensor();
    if (constant.empty()) continue;
    const Value* x = node->input(0);
    int64_t axis = node->attr("axis", 0), entry = constant.to_ints()[0];
    if (axis < 0) axis += x->rank();
    const int64_t size = x->type().shape()[static_cast<size_t>(axis)];
    if (entry < 0) entry += size;
    if (entry < 0 || entry >= size) continue;
    found.try_emplace({x->id(), axis}, Selections{axis, {}}).first->second.all.push_back({node, entry});
  }
  std::vector<Selections> result;
  for (auto& [_, selections] : found) result.push_back(std::move(selections));
  return result;
}

void split(const Selections& selections) {
  const auto& [axis, all] = selections;
  Value* const x = selections.x();
  Builder b(&x->graph(), all.front().gather);
  b.set_name(x->name());
  Shape shape = x->type().shape(), permutation(shape.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  permutation.erase(permutation.begin() + axis);
  permutation.insert(permutation.begin(), axis);
  const Var in_front = axis == 0 ? b.var(x) : b.op("Transpose", {b.var(x)}, {{"perm", permutation}});
  const Shape ones(static_cast<size_t>(selections.size()), 1);
  const std::vector<Var> pieces =
      b.ops("Split", static_cast<int>(std::ssize(ones)), {in_front, b.ints(ones)}, {{"axis", 0}});
  shape.erase(shape.begin() + axis);
  for (const auto& [gather, entry] : all) {
    b.set_name(gather->output()->name());
    const Var piece = reshape(pieces[static_cast<size_t>(entry)], b.ints(shape));
    x->graph().replace(gather->output(), piece.value());
  }
  for (const Selection& selection : all) x->graph().remove(selection.gather);  // b inserts before one of them
}

}  // namespace

bool split_selections(Model& model) {
  bool changed = false;
  for (const Selections& selections : find_selections(*model.graph)) {
    if (selections.size() < 2 || selections.size() > kMostEntries || !selections.cover_axis()) continue;
    split(selections);
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
