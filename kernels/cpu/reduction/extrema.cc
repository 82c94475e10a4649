#include "kernels/cpu/reduction/prepare.h"

namespace onnx_train::cpu {

std::vector<Kernel> extremum_kernels() {
  ReductionSink sink;
  for_each_extremum(sink);
  return std::move(sink).kernels();
}

}  // namespace onnx_train::cpu
