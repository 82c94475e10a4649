#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/map_sink.h"

namespace onnx_train::cuda {

std::vector<Kernel> arithmetic_rows() {
  MapSink sink;
  for_each_arithmetic_operator(sink);
  return sink.rows();
}

}  // namespace onnx_train::cuda
