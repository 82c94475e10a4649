#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/types/narrow_nodes.h"
#include "onnx_passes/ir/types.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

bool narrow_storage(Model& model, const Device& device) {
  return narrow_nodes(model, device, [](const Node& node) {
    // assign_types chose which products and recurrences read 16 bits.
    const OperatorKind kind = operator_of(node).kind;
    if (kind == OperatorKind::kProduct) return is_16_bit_float(node.input(0)->dtype());
    return kind != OperatorKind::kRecurrence;
  });
}

}  // namespace onnx_train
