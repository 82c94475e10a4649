// Frozen weights that mixed precision rounds are rounded once, not in every step: beside adapters, the copies would be
// most of what a step keeps and writes. The float32 numbers stay in the file, whose pages the system takes back.
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

bool is_rounded(const Value& table, DType dtype) {
  return std::ranges::any_of(table.uses(), [&](const Use& use) {
    return is_rounding_for_readers(*use.node) && use.node->output()->dtype() == dtype;
  });
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
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (node->is("Gather") && is_float_constant(node->input(0))) round_before_lookup(graph, node);
  }
  RoundedOnce rounded(graph);
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (is_rounding_for_readers(*node) && is_float_constant(node->input(0))) rounded.replace(node);
  }
  return rounded.any();
}

}  // namespace onnx_train
