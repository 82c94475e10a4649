#include "runtime/plan/flops.h"

#include <set>

#include "kernels/cost.h"
#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

void collect_symbols(const Value* value, std::set<std::string>* symbols) {
  if (!value || !value->has_rank()) return;
  for (const Dim& dim : *value->type().dims) {
    if (!dim.known()) symbols->insert(dim.symbol().empty() ? "?" : dim.symbol());
  }
}

}  // namespace

std::string describe_flops(const Graph& graph) {
  double total = 0;
  std::set<std::string> symbols;
  for (const Node* node = graph.first(); node; node = node->next()) {
    const double flops = cost_of(*node).total_flops();
    if (flops == 0) continue;
    total += flops;
    for (const Value* input : node->inputs()) collect_symbols(input, &symbols);
    collect_symbols(node->output(), &symbols);
  }
  std::string assumed;
  for (const std::string& symbol : symbols) assumed += concat(assumed.empty() ? "" : ", ", symbol, " = 1");
  return format_count(total) + (assumed.empty() ? "" : concat(" for ", assumed));
}

}  // namespace onnx_train
