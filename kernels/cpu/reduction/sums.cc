#include "kernels/cpu/reduction/prepare.h"

namespace onnx_train::cpu {

std::vector<Kernel> sum_kernels() {
  ReductionSink sink;
  for_each_sum(sink);
  return std::move(sink).kernels();
}

}  // namespace onnx_train::cpu
