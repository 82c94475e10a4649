// Pools over whole planes: reductions of the spatial axes.
#include "kernels/cuda/pooling/pools.h"
#include "kernels/cuda/reduction/reduce.h"
#include "kernels/math/reducers.h"

namespace onnx_train::cuda {
namespace {

ReductionPlan plan_of(const NodeSpec& spec) {
  std::vector<bool> reduced(spec.in_shape().size(), true);
  reduced[0] = reduced[1] = false;
  return {spec.in_shape(), reduced};
}

}  // namespace

Prepared prepare_global_average(const NodeSpec& spec) {
  return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename Y>(S, Y) {
    using T = Computed<S>;
    return prepare_reduction<math::MeanOf<T, DeviceWide<T>>, S, Y>(plan_of(spec));
  });
}

Prepared prepare_global_max(const NodeSpec& spec) {
  return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename Y>(S, Y) {
    return prepare_reduction<math::MaximumOf<Computed<S>>, S, Y>(plan_of(spec));
  });
}

}  // namespace onnx_train::cuda
