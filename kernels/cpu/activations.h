// The part of the activation family that is not element-wise, joined with the rest in activations.cc.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

std::vector<Kernel> softmax_kernels();  // softmax.cc: Softmax, LogSoftmax, Hardmax, SoftmaxGrad, LogSoftmaxGrad

}  // namespace onnx_train::cpu
