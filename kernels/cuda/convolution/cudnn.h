// Convolutions by cuDNN. A plan of the library is made once for each geometry, the first time that a kernel is looked
// for; nodes share it. The functions run while kernels are chosen and prepared; any thread.
#pragma once

#include "kernels/cuda/convolution/convolutions.h"

namespace onnx_train::cuda {

// Whether cuDNN is there and has a deterministic algorithm for the convolution, with a workspace of at most 2 GiB.
// Operands and result are float32, or operands have 16 bits, and the result, too, or 32; a bias is float32. Sums are
// float32, of the exact products of the operands.
bool has_cudnn_plan(const NodeSpec& spec, const Convolution& c, Direction direction);

// Whether it has plans for the convolution of operands of 16 bits, of type `narrow`, with results of 16 and of 32 bits.
bool has_narrow_plans(const Convolution& c, Direction direction, DType narrow);

// For a convolution with a plan.
Prepared prepare_cudnn(const NodeSpec& spec, const Convolution& c, Direction direction);

}  // namespace onnx_train::cuda
