#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/map_sink.h"

namespace onnx_train::cuda {

std::vector<Kernel> activation_rows() {
  MapSink sink;
  for_each_activation(sink);
  return sink.rows();
}

}  // namespace onnx_train::cuda
