#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/map_sink.h"

namespace onnx_train::cuda {

std::vector<Kernel> function_of_floats_rows() {
  MapSink sink;
  for_each_function_of_floats(sink);
  return sink.rows();
}

}  // namespace onnx_train::cuda
