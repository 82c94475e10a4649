// The parts of the element-wise family; elementwise.cc joins them.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

std::vector<Kernel> arithmetic_kernels();  // arithmetic.cc: Add, Sub, Mul, Div, Mod, Pow, Neg, Abs, Max, Sum, Clip, ...
std::vector<Kernel> math_kernels();        // elementwise.cc: Exp, Log, Sin, Erf, Floor, ... of floats
std::vector<Kernel> logic_kernels();       // logic.cc: comparisons, And, Not, bits, IsNaN, Where
std::vector<Kernel> cast_kernels();        // casts.cc: Cast, CastLike

}  // namespace onnx_train::cpu
