#include "kernels/lowering/support/lowering.h"

#include "kernels/device.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

bool runs_on(const Device& device, Node* made) {
  if (find_kernel(device, *made)) return true;
  made->graph().remove(made);
  return false;
}

}  // namespace onnx_train
