#include "kernels/cuda/convolution/convolutions.h"
#include "kernels/cuda/reduction/reductions.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train::cuda {

Prepared prepare_bias_gradient(const NodeSpec& spec) {
  std::vector<bool> reduced(spec.in_shape(1).size(), true);
  reduced[is_channels_last(spec.node()) ? reduced.size() - 1 : 1] = false;
  const Prepared sum = prepare_sum_of(spec.in_type(1), spec.in_shape(1), reduced);
  return {[run = sum.run](const Launch& launch) {
            Launch of_bias = launch;  // reduces input 0 to output 0
            ++of_bias.inputs;
            ++of_bias.outputs;
            run(of_bias);
          },
          sum.workspace};
}

}  // namespace onnx_train::cuda
