#include "kernels/cuda/reduction/reduce.h"
#include "kernels/cuda/reduction/reductions.h"
#include "kernels/math/reducers.h"

namespace onnx_train::cuda {
Prepared prepare_maximum(const NodeSpec& spec) { return prepare_ordered<math::MaximumOf>(spec); }
Prepared prepare_minimum(const NodeSpec& spec) { return prepare_ordered<math::MinimumOf>(spec); }

}  // namespace onnx_train::cuda
