#include "kernels/lowering/lowering.h"

#include "kernels/device.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

bool runs_on(const Device& device, Node* made) {
  if (find_kernel(device, *made)) return true;
  made->graph().remove(made);
  return false;
}

bool is_view(const Node& node) { return operator_of(node).kind == OperatorKind::kView; }

}  // namespace onnx_train
