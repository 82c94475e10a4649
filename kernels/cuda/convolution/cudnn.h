// Convolutions by cuDNN. The first query for a geometry makes a library plan, which nodes share. The functions run
// while kernels are chosen and prepared; any thread.
#pragma once

#include "kernels/cuda/convolution/convolutions.h"

namespace onnx_train::cuda {

// Whether cuDNN is available and has a deterministic algorithm for the convolution with a workspace of at most 2 GiB.
// Operands and result are float32, or operands have 16 bits and the result 16 or 32; a bias is float32. Sums are
// float32 sums of exact products of the operands.
bool has_cudnn_plan(const NodeSpec& spec, const Convolution& c, Direction direction);

// Whether cuDNN has plans for operands of a type that tensor cores multiply, 16 bits or float32 that may be rounded to
// TF32, with results of that type and in float32.
bool has_tensor_core_plans(const Convolution& c, Direction direction, DType type);

// Requires has_cudnn_plan.
Prepared prepare_cudnn(const NodeSpec& spec, const Convolution& c, Direction direction);

}  // namespace onnx_train::cuda
