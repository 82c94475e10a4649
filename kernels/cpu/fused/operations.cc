#include "kernels/cpu/fused/operations.h"
#include "onnx_passes/operators/operators.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "kernels/cpu/fused/reducers.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/fusion/fusion_region.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// Element types that fused programs compute with. Selections move elements of any type.
bool is_fused_type(DType dtype) {
  return is_float(dtype) || dtype == DType::kInt64 || dtype == DType::kInt32 || dtype == DType::kBool;
}

bool has_fused_types(const ElementwiseRow& row, const Node& node) {
  const auto fits = [&](const Value* input) {
    return !input || (is_fused_type(input->dtype()) && (!row.one_type || input->dtype() == node.input(0)->dtype()));
  };
  return node.is("Where") ||
         (std::all_of(node.inputs().begin(), node.inputs().end(), fits) && is_fused_type(node.output()->dtype()));
}

}  // namespace

const ElementwiseRow* find_elementwise_row(const Node& node) {
  static const auto index = [] {
    std::unordered_map<std::string, const ElementwiseRow*> rows;
    for (const ElementwiseRow& row : elementwise_rows()) rows.emplace(concat(row.domain, ".", row.op), &row);
    return rows;
  }();
  const auto found = index.find(concat(node.domain(), ".", node.op()));
  return found == index.end() ? nullptr : found->second;
}

// A variadic operator combines the first two operands into the result, then adds one operand at a time.
ElementwiseLoop fused_loop(const ElementwiseRow& row, const Node& node) {
  ElementwiseLoop loop = row.make(node);
  if (!row.is_variadic()) return loop;
  return [combine = std::move(loop), scale = row.make_scale(node), operands = node.num_inputs()](
             int64_t n, const LoopOperand* in, void* out) {
    const LoopOperand result{out, true};
    combine(n, in, out);
    for (int i = 2; i < operands; ++i) {
      const LoopOperand pair[] = {result, in[i]};
      combine(n, pair, out);
    }
    if (scale) scale(n, &result, out);
  };
}

bool can_fuse(const Node& node) {
  if (node.num_inputs() == 0 || !node.input(0) || node.num_outputs() != 1 || !node.output()) return false;
  if (is_view(node) || node.is("Expand")) return is_movable(node.output()->dtype());
  if (is_reduction(node)) return find_reducer(node) != nullptr;
  if (node.num_inputs() > kMaxOperands || node.is("CastLike")) return false;
  const ElementwiseRow* row = find_elementwise_row(node);
  if (!row || (row->is_variadic() && node.num_inputs() < 2)) return false;
  return row->supports(node) && has_fused_types(*row, node);
}

}  // namespace onnx_train::cpu
