// The groups of element-wise operators (kernels/elementwise.h), a file each; elementwise.cc joins them.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

std::vector<Kernel> arithmetic_rows();           // arithmetic.cu
std::vector<Kernel> bound_rows();                // bounds.cu
std::vector<Kernel> power_rows();                // powers.cu
std::vector<Kernel> function_of_floats_rows();   // functions.cu
std::vector<Kernel> activation_rows();           // activations.cu
std::vector<Kernel> activation_gradient_rows();  // activation_gradients.cu
std::vector<Kernel> comparison_rows();           // comparisons.cu
std::vector<Kernel> logic_rows();                // logic.cu
std::vector<Kernel> cast_rows();                 // casts.cu
std::vector<Kernel> cast_tensors_rows();         // cast_tensors.cu

}  // namespace onnx_train::cuda
