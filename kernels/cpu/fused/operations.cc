#include "kernels/cpu/fused/operations.h"

#include <string>
#include <unordered_map>

#include "kernels/cpu/fused/reducers.h"
#include "kernels/dispatch.h"
#include "kernels/lowering/fusion_region.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {

const FusedOperator* find_fused_operator(const Node& node) {
  static const auto index = [] {
    std::unordered_map<std::string, FusedOperator> rows;
    for (auto* family : {fused_arithmetic, fused_activations, fused_logic}) {
      for (FusedOperator& row : family()) rows.emplace(concat(row.domain, ".", row.op), std::move(row));
    }
    return rows;
  }();
  const auto found = index.find(concat(node.domain(), ".", node.op()));
  return found == index.end() ? nullptr : &found->second;
}

bool can_fuse(const Node& node) {
  if (node.num_inputs() == 0 || !node.input(0) || node.num_outputs() != 1 || !node.output()) return false;
  if (is_view(node) || node.is("Expand")) return is_movable(node.output()->dtype());
  if (is_reduction(node)) return find_reducer(node) != nullptr;
  if (node.num_inputs() > kMaxOperands) return false;
  const FusedOperator* row = find_fused_operator(node);
  return row && row->make(node);
}

}  // namespace onnx_train::cpu
