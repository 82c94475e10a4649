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

Prepared prepare_reduced_product(const NodeSpec& spec) { return prepare<math::ProductOf>(spec); }
Prepared prepare_norm(const NodeSpec& spec) { return prepare<math::NormOf>(spec); }
Prepared prepare_log_sum(const NodeSpec& spec) { return prepare<math::LogOfSum>(spec); }
Prepared prepare_log_sum_exp(const NodeSpec& spec) { return prepare<math::LogSumExpOf>(spec); }

}  // namespace onnx_train::cuda
