// Plain SGD does not change rows of a table with zero gradients, such as those that a batch does not look up. Therefore
//
//   g = GatherGrad (dy, indices, shape)        rows, places = CoalesceRows (dy, indices, shape)
//   norm = GlobalNorm (.., g, ..)        is    norm = GlobalNorm (.., rows, ..)
//   next_w = Sgd (w, g, ..)                    next_w = SparseSgd (w, rows, places, ..)
//
// and SparseAdam (w, g, ..), which is defined that way, is SparseAdamRows (w, rows, places, ..) likewise.
//
// A step's cost then depends on the batch, not on the size of the table. The gradient of a row is summed in the order
// of GatherGrad and the update is the same formula: the bits are equal if weights, rate and scale are finite. Several
// lookups in one table (AddGatherGrad of GatherGrad) become one lookup with concatenated indices.
//
// Not converted: Adam, AdamW, momentum and weight decay, which change every row; tables with other uses; gradients with
// other readers, such as an accumulator or loss scaling; tables with no more rows than lookups.
#include <algorithm>

#include "kernels/dispatch.h"
#include "kernels/functions/functions.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/updates/updates.h"

namespace onnx_train {
namespace {

struct Lookup {
  Value *dy, *indices;
};

int64_t size_of_all(const Value* value) { return num_elements(value->type().shape()); }

// Returns the lookups whose sum is `gradient`, in the order of addition; nothing if it is not such a sum.
std::vector<Lookup> lookups_in(const Value* gradient) {
  std::vector<Lookup> lookups;  // last one first
  const Node* node = gradient->producer();
  while (node && node->is("AddGatherGrad", kDomain)) {
    const Value* sum = node->input(0);
    if (sum->uses().size() != 1 || sum->graph().is_output(sum)) return {};
    lookups.push_back({node->input(1), node->input(2)});
    node = sum->producer();
  }
  if (!node || !node->is("GatherGrad", kDomain) || node->attr("axis", 0) != 0) return {};
  lookups.push_back({node->input(0), node->input(1)});
  return {lookups.rbegin(), lookups.rend()};
}

bool leaves_rows_without_gradient(const Node& update) {
  if (update.is("SparseAdam", kDomain)) return true;
  if (!update.is("Sgd", kDomain) || update.input(2)) return false;
  const Tensor decay = update.attr_tensor("weight_decay");
  return !decay.empty() && decay.at(0) == 0;
}

// Whether only the update and norms read the gradient, and only the next step reads the new weight and slots.
bool is_private(const Node& update) {
  const Graph& graph = update.graph();
  const Value* gradient = update.input(1);
  const auto& outputs = update.outputs();
  const bool are_states = std::all_of(outputs.begin(), outputs.end(),
                                      [&](const Value* next) { return next->uses().empty() && graph.is_output(next); });
  if (graph.is_output(gradient) || !are_states) return false;
  return std::all_of(gradient->uses().begin(), gradient->uses().end(),
                     [&](const Use& use) { return use.node == &update || use.node->is("GlobalNorm", kDomain); });
}

// Returns the lookups of a table that can be updated by rows; nothing for any other update.
std::vector<Lookup> sparse_lookups(const Node& update) {
  if (!leaves_rows_without_gradient(update) || !is_private(update)) return {};
  const TensorType& table = update.input(0)->type();
  std::vector<Lookup> lookups = lookups_in(update.input(1));
  int64_t looked_up = 0;
  for (const Lookup& lookup : lookups) {
    if (!lookup.indices->type().is_static()) return {};
    looked_up += size_of_all(lookup.indices);
  }
  const bool is_sparse = !table.shape().empty() && looked_up < table.shape()[0];
  const bool is_ours = is_float_or_double(table.dtype) && update.input(1)->type() == table;
  return is_sparse && is_ours ? lookups : std::vector<Lookup>();
}

// Concatenates all lookups; returns dy [n, rest of w's shape] and indices [n].
std::pair<Var, Var> joined(Builder& b, const std::vector<Lookup>& lookups, const Value* w) {
  if (lookups.size() == 1) return {b.var(lookups[0].dy), b.var(lookups[0].indices)};
  std::vector<Var> dy, indices;
  for (const Lookup& lookup : lookups) {
    const int64_t n = size_of_all(lookup.indices);
    Shape shape = w->type().shape();
    shape[0] = n;
    dy.push_back(reshape(b.var(lookup.dy), b.ints(shape)));
    indices.push_back(cast(reshape(b.var(lookup.indices), b.ints({n})), DType::kInt64));
  }
  return {concat(dy, int64_t{0}), concat(indices, int64_t{0})};
}

void remove_gradient(Graph& graph, Value* gradient) {
  while (gradient && gradient->uses().empty()) {
    Node* node = gradient->producer();
    gradient = node->is("AddGatherGrad", kDomain) ? node->input(0) : nullptr;
    graph.remove(node);
  }
}

void make_sparse(Node* update, const std::vector<Lookup>& lookups) {
  Graph& graph = update->graph();
  Value *w = update->input(0), *gradient = update->input(1);
  Builder b(&graph, gradient->producer());
  b.set_name(gradient->name() + "/rows");
  const auto [dy, indices] = joined(b, lookups, w);
  const auto rows = call_lowered(b, "CoalesceRows", 2, {dy, indices, b.ints(w->type().shape())});
  Builder at_update(&graph, update);
  at_update.set_name(update->output()->name());
  const bool is_sgd = update->is("Sgd", kDomain);
  std::vector<Var> operands = {at_update.var(w), at_update.var(rows[0].value()), at_update.var(rows[1].value())};
  for (int i = is_sgd ? 4 : 2; i < update->num_inputs(); ++i) operands.push_back(at_update.var(update->input(i)));
  Attrs attrs;
  for (const char* name : {"beta1", "beta2", "epsilon"}) {
    if (!is_sgd) attrs.emplace_back(name, update->attr_tensor(name));
  }
  const auto next =
      call_lowered(at_update, is_sgd ? "SparseSgd" : "SparseAdamRows", update->num_outputs(), operands, attrs);
  for (size_t i = 0; i < next.size(); ++i) graph.replace(update->output(static_cast<int>(i)), next[i].value());
  graph.remove(update);
  graph.replace(gradient, rows[0].value());
  remove_gradient(graph, gradient);
}

}  // namespace

bool sparse_updates(Model& model) {
  bool changed = false;
  for (Node* node = model.graph->first(); node;) {
    Node* next = node->next();
    if (const auto lookups = sparse_lookups(*node); !lookups.empty()) {
      make_sparse(node, lookups);
      changed = true;
    }
    node = next;
  }
  return changed;
}

}  // namespace onnx_train
