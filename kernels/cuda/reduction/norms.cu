#include "kernels/cuda/reduction/reduce.h"
#include "kernels/cuda/reduction/reductions.h"
#include "kernels/math/reducers.h"

namespace onnx_train::cuda {
Prepared prepare_reduced_product(const NodeSpec& spec) { return prepare_numbers<math::ProductOf>(spec); }
Prepared prepare_norm(const NodeSpec& spec) { return prepare_numbers<math::NormOf>(spec); }
Prepared prepare_log_sum(const NodeSpec& spec) { return prepare_numbers<math::LogOfSum>(spec); }
Prepared prepare_log_sum_exp(const NodeSpec& spec) { return prepare_numbers<math::LogSumExpOf>(spec); }

}  // namespace onnx_train::cuda
