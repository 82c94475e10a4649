#include "tests/op_cases/op_case.h"

namespace onnx_train {

std::vector<OpCase> normalization_cases() { return {}; }

}  // namespace onnx_train
