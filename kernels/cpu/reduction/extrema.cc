#include "kernels/cpu/reduction/prepare.h"

namespace onnx_train::cpu {

Prepared prepare_maximum(const NodeSpec& spec) { return prepare_ordered<math::MaximumOf>(spec); }
Prepared prepare_minimum(const NodeSpec& spec) { return prepare_ordered<math::MinimumOf>(spec); }

}  // namespace onnx_train::cpu
