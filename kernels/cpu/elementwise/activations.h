// The activations that are not element-wise; activations.cc joins them with the others.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

std::vector<Kernel> softmax_kernels();  // softmax.cc: Softmax, LogSoftmax, Hardmax, SoftmaxGrad, LogSoftmaxGrad

}  // namespace onnx_train::cpu
