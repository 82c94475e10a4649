#include "kernels/cpu/reduction/prepare.h"

namespace onnx_train::cpu {

std::vector<Kernel> norm_kernels() {
  ReductionSink sink;
  for_each_norm(sink);
  return std::move(sink).kernels();
}

}  // namespace onnx_train::cpu
