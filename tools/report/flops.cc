#include "tools/report/flops.h"

#include <set>

#include "onnx_passes/ir/error.h"
#include "tools/report/format.h"

namespace onnx_train {
namespace {

// The product of a tensor's sizes, where symbols count as 1 and are collected.
double elements(const TensorType& type, std::set<std::string>* symbols) {
  double count = 1;
  if (!type.has_rank()) return 0;
  for (const Dim& dim : *type.dims) {
    if (dim.known()) count *= static_cast<double>(dim.value());
    if (!dim.known()) symbols->insert(dim.symbol().empty() ? "?" : dim.symbol());
  }
  return count;
}

double dim_or_one(const TensorType& type, int64_t axis) {
  const Dim& dim = (*type.dims)[static_cast<size_t>(axis)];
  return dim.known() ? static_cast<double>(dim.value()) : 1;
}

// Multiply-adds for one element of the output.
double inner_size(const Node& node, std::set<std::string>* symbols) {
  const Value* a = node.input(0);
  const Value* b = node.input(1);
  if (!a || !b || !a->has_rank() || !b->has_rank()) return 0;
  if (node.is("MatMul") && a->rank() > 0) return dim_or_one(a->type(), a->rank() - 1);
  if (node.is("Gemm") && a->rank() == 2) return dim_or_one(a->type(), node.attr("transA", 0) ? 0 : 1);
  if (node.is("Conv") && b->rank() > 0) return elements(b->type(), symbols) / dim_or_one(b->type(), 0);
  return 0;
}

}  // namespace

std::string describe_flops(const Graph& graph) {
  double total = 0;
  std::set<std::string> symbols;
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (!node->output()) continue;
    const double inner = inner_size(*node, &symbols);
    if (inner > 0) total += 2 * inner * elements(node->output()->type(), &symbols);
  }
  std::string assumed;
  for (const std::string& symbol : symbols) assumed += concat(assumed.empty() ? "" : ", ", symbol, " = 1");
  return format_count(total) + (assumed.empty() ? "" : concat(" for ", assumed));
}

}  // namespace onnx_train
