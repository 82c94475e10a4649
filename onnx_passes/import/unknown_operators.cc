#include "onnx_passes/import/unknown_operators.h"

#include <algorithm>
#include <vector>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/liveness.h"

namespace onnx_train {
namespace {

void find_unknown(const Node& node, bool inside, std::vector<const Node*>* found) {
  const ForeignRow* foreign = find_foreign(node);
  if (!is_known_operator(node) && !(foreign && foreign->rewrite)) found->push_back(&node);
  if (!inside) return;
  for (const auto& subgraph : node.subgraphs()) {
    for (const Node* n = subgraph.graph->first(); n; n = n->next()) find_unknown(*n, inside, found);
  }
}

}  // namespace

void expect_known_operators(const Graph& graph, bool inside) {
  Liveness live;
  for (const Value* output : graph.outputs()) live.need(output);
  live.trace(graph);
  std::vector<const Node*> unknown;
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (live.runs(node)) find_unknown(*node, inside, &unknown);
  }
  if (unknown.empty()) return;
  const bool one =
      std::all_of(unknown.begin(), unknown.end(), [&](const Node* n) { return n->op() == unknown[0]->op(); });
  fail_as(ErrorCode::kUnknownOperator, "[Import] ", list_operators(unknown), one ? " is" : " are", " not known here; ",
          replacement_advice(*unknown[0]));
}

}  // namespace onnx_train
