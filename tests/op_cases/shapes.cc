#include "tests/op_cases/op_case.h"

namespace onnx_train {

std::vector<OpCase> shape_cases() { return {}; }

}  // namespace onnx_train
