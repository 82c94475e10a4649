// The kernels of the Reduce operators, by file. Each file takes a compiler about 15 seconds.
#pragma once

#include "kernels/geometry/reductions.h"

namespace onnx_train::cpu {

std::vector<Kernel> sum_kernels();       // sums.cc
std::vector<Kernel> norm_kernels();      // norms.cc
std::vector<Kernel> extremum_kernels();  // extrema.cc

}  // namespace onnx_train::cpu
