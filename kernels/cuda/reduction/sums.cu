#include "kernels/cuda/reduction/reduce.h"
#include "kernels/cuda/reduction/reductions.h"
#include "kernels/dispatch.h"
#include "kernels/math/reducers.h"

namespace onnx_train::cuda {
namespace {

template <template <typename, typename> typename Op>
Prepared prepare(const NodeSpec& spec) {
  const ReductionPlan plan(spec.in_shape(0), reduced_axes(spec));
  return dispatch_numeric(spec.in_type(0),
                          [&]<typename T>(T) { return prepare_reduction<Op<T, DeviceWide<T>>, T>(plan); });
}

}  // namespace

Prepared prepare_sum(const NodeSpec& spec) { return prepare<math::SumOf>(spec); }
Prepared prepare_mean(const NodeSpec& spec) { return prepare<math::MeanOf>(spec); }
Prepared prepare_absolute_sum(const NodeSpec& spec) { return prepare<math::AbsoluteSumOf>(spec); }
Prepared prepare_square_sum(const NodeSpec& spec) { return prepare<math::SquareSumOf>(spec); }

}  // namespace onnx_train::cuda
