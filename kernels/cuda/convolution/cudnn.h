// Convolutions by cuDNN. The first query for a geometry makes a library plan, which nodes share. The functions run
// while kernels are chosen and prepared; any thread.
#pragma once

#include "kernels/cuda/convolution/convolutions.h"

namespace onnx_train::cuda {

// Whether cuDNN is available and has a deterministic algorithm for the convolution with a workspace of at most 2 GiB.
// Operands and result are float32, or operands have 16 bits and the result 16 or 32; a bias is float32. Sums are
// float32 sums of exact products of the operands.
bool has_cudnn_plan(const NodeSpec& spec, const Convolution& c, Direction direction);

// Whether cuDNN has plans for operands of the 16-bit type `narrow` with 16-bit results and with 32-bit results.
bool has_narrow_plans(const Convolution& c, Direction direction, DType narrow);

// Whether cuDNN has a plan for float32 operands that may be rounded to TF32.
bool has_tf32_plan(const Convolution& c, Direction direction);

// Requires has_cudnn_plan.
Prepared prepare_cudnn(const NodeSpec& spec, const Convolution& c, Direction direction);

}  // namespace onnx_train::cuda
