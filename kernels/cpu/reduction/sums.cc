#include "kernels/cpu/reduction/prepare.h"

namespace onnx_train::cpu {

Prepared prepare_sum(const NodeSpec& spec) { return prepare_numbers<math::SumOf>(spec); }
Prepared prepare_mean(const NodeSpec& spec) { return prepare_numbers<math::MeanOf>(spec); }
Prepared prepare_log_sum(const NodeSpec& spec) { return prepare_numbers<math::LogOfSum>(spec); }
Prepared prepare_absolute_sum(const NodeSpec& spec) { return prepare_numbers<math::AbsoluteSumOf>(spec); }

}  // namespace onnx_train::cpu
