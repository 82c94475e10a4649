#include "kernels/dispatch.h"

namespace onnx_train {

bool is_numeric(DType dtype) { return is_float_or_double(dtype) || is_integer(dtype); }

}  // namespace onnx_train
