#include "kernels/cuda/reduction/reduce.h"
#include "kernels/cuda/reduction/reductions.h"
#include "kernels/math/reducers.h"

namespace onnx_train::cuda {
Prepared prepare_sum(const NodeSpec& spec) { return prepare_numbers<math::SumOf>(spec); }
Prepared prepare_sum_of(DType stored, const Shape& shape, const std::vector<bool>& is_reduced, int input, int output) {
  Prepared sum = dispatch_stored(stored, [&]<typename S>(S) {
    return prepare_reduction<math::SumOf<Computed<S>, DeviceWide<Computed<S>>>, S, Computed<S>>(
        ReductionPlan(shape, is_reduced));
  });
  sum.run = [run = sum.run, input, output](Launch launch) {
    launch.inputs += input;
    launch.outputs += output;
    run(launch);
  };
  return sum;
}
Prepared prepare_mean(const NodeSpec& spec) { return prepare_numbers<math::MeanOf>(spec); }
Prepared prepare_absolute_sum(const NodeSpec& spec) { return prepare_numbers<math::AbsoluteSumOf>(spec); }
Prepared prepare_square_sum(const NodeSpec& spec) { return prepare_numbers<math::SquareSumOf>(spec); }

}  // namespace onnx_train::cuda
