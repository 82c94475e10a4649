#include "kernels/cpu/reduction/prepare.h"

namespace onnx_train::cpu {

Prepared prepare_square_sum(const NodeSpec& spec) { return prepare_numbers<math::SquareSumOf>(spec); }
Prepared prepare_norm(const NodeSpec& spec) { return prepare_numbers<math::NormOf>(spec); }
Prepared prepare_reduced_product(const NodeSpec& spec) { return prepare_numbers<math::ProductOf>(spec); }
Prepared prepare_log_sum_exp(const NodeSpec& spec) { return prepare_numbers<math::LogSumExpOf>(spec); }

}  // namespace onnx_train::cpu
