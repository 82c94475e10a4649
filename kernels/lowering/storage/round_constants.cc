// Frozen weights that mixed precision rounds are rounded once, not in every step: beside adapters, the copies would be
// most of what a step keeps and writes. The float32 numbers stay in the file, whose pages the system takes back.
// Weights that the file has in 16 bits are read there, where they are rounded to the same type, and where rows of them
// are looked up.
#include <algorithm>
#include <map>

#include "kernels/lowering/canonical/segments.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/io/shared_copy.h"
#include "onnx_passes/ir/initializer.h"

namespace onnx_train {
namespace {

bool is_float_constant(const Value* value) { return value && is_constant(*value) && value->dtype() == DType::kFloat; }

// What a frozen weight has in the file; null if that is float32.
const Tensor* stored_in_16_bits(const Value& constant) {
  const Tensor* beside = contents_beside(constant.shared_initializer());
  return beside ? beside->narrow() : nullptr;
}

bool is_rounded(const Value& table, DType dtype) {
  return std::ranges::any_of(table.uses(), [&](const Use& use) {
    return is_rounding_for_readers(*use.node) && use.node->output()->dtype() == dtype;
  });
}

// The float32 rows of a table in 16 bits are made of the rows that are looked up.
void widen_after_lookup(Graph* graph, Node* lookup, const Tensor& stored) {
  Builder b(graph, lookup);
  const Var table = b.var(graph->add_initializer(graph->unique_name(lookup->input(0)->name() + "/stored"), stored));
  b.set_name(lookup->output()->name() + "/stored");
  const Var rows = b.like(*lookup, {table, b.var(lookup->input(1))})[0];
  const std::vector<Use> uses = lookup->output()->uses();
  for (const Use& use : uses) {
    const bool rounds = is_rounding_for_readers(*use.node) && use.node->output()->dtype() == stored.dtype();
    if (rounds && &use.node->graph() == graph) replace_node(use.node, {rows});
  }
  if (lookup->output()->uses().empty() && !graph->is_output(lookup->output())) return graph->remove(lookup);
  b.set_name(lookup->output()->name() + "/wide");
  replace_node(lookup, {cast(rows, DType::kFloat)});
}

// Rows that all readers round come from the rounded table, if a head rounds it: it is then not read in float32.
void round_before_lookup(Graph* graph, Node* lookup) {
  const std::vector<Node*> roundings = narrowing_readers(lookup->output());
  if (roundings.empty() || !is_rounded(*lookup->input(0), roundings[0]->output()->dtype())) return;
  Builder b(graph, lookup);
  b.set_name(lookup->output()->name() + "/rounded");
  const Var table = cast(b.var(lookup->input(0)), roundings[0]->output()->dtype());
  const Var rows = b.like(*lookup, {table, b.var(lookup->input(1))})[0];
  for (Node* rounding : roundings) replace_node(rounding, {rows});
  graph->remove(lookup);
}

class RoundedOnce {
 public:
  explicit RoundedOnce(Graph* graph) : graph_(*graph) {}

  void replace(Node* rounding) {
    Value* output = rounding->output();
    Value*& narrow = made_[{rounding->input(0), output->dtype()}];
    if (!narrow) narrow = graph_.add_initializer(graph_.unique_name(output->name() + "/once"), numbers_of(*rounding));
    graph_.replace(output, narrow);
    graph_.remove(rounding);
  }
  bool any() const { return !made_.empty(); }

 private:
  static Tensor numbers_of(const Node& rounding) {
    const Value& wide = *rounding.input(0);
    const DType dtype = rounding.output()->dtype();
    const Tensor* beside = contents_beside(wide.shared_initializer());
    return beside ? shared_copy(*beside, dtype) : contents_of(wide).cast(dtype);
  }

  Graph& graph_;
  std::map<std::pair<const Value*, DType>, Value*> made_;
};

}  // namespace

bool round_constants(Model& model) {
  Graph* graph = model.graph.get();
  bool changed = false;
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (!node->is("Gather") || !is_float_constant(node->input(0))) continue;
    const Tensor* stored = stored_in_16_bits(*node->input(0));
    if (stored) {
      changed = true;
      // Readers of the rows that round them may be the next nodes, which are removed with it.
      Node* const before = node->previous();
      widen_after_lookup(graph, node, *stored);
      next = before ? before->next() : graph->first();
    } else {
      round_before_lookup(graph, node);
    }
  }
  RoundedOnce rounded(graph);
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (is_rounding_for_readers(*node) && is_float_constant(node->input(0))) rounded.replace(node);
  }
  return changed || rounded.any();
}

}  // namespace onnx_train
