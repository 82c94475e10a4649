#include "kernels/cpu/elementwise/loop_sink.h"

namespace onnx_train::cpu {

std::vector<ElementwiseRow> logic_rows() {
  LoopSink sink;
  for_each_logic_operator(sink);
  return sink.rows();
}

}  // namespace onnx_train::cpu
