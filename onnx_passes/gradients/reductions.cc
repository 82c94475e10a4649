#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {

std::vector<GradientRule> reduction_rules() { return {}; }

}  // namespace onnx_train
