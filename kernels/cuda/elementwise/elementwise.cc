#include "kernels/cuda/elementwise/elementwise.h"

#include <iterator>

#include "kernels/cuda/kernels.h"

namespace onnx_train::cuda {

std::vector<Kernel> elementwise_kernels() {
  std::vector<Kernel> all;
  for (auto* group : {arithmetic_rows, bound_rows, power_rows, function_of_floats_rows, activation_rows,
                      activation_gradient_rows, comparison_rows, logic_rows, cast_rows, cast_tensors_rows}) {
    std::vector<Kernel> rows = group();
    std::move(rows.begin(), rows.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace onnx_train::cuda
