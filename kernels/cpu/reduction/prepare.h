// Kernels of the Reduce operators from the operations of kernels/math/reducers.h.
#pragma once

#include "kernels/cpu/reduction/reduce.h"
#include "kernels/cpu/reduction/reductions.h"
#include "kernels/dispatch.h"
#include "kernels/math/reducers.h"

namespace onnx_train::cpu {

// Operations that differ only in `finish` share the loops of one operation.
template <typename T, typename W>
struct FoldOf<math::MeanOf<T, W>> : FoldOf<math::SumOf<T, W>> {};
template <typename T, typename W>
struct FoldOf<math::LogOfSum<T, W>> : FoldOf<math::SumOf<T, W>> {};
template <typename T, typename W>
struct FoldOf<math::NormOf<T, W>> : FoldOf<math::SquareSumOf<T, W>> {};

template <template <typename, typename...> typename Op, typename T>
Prepared prepare_as(const NodeSpec& spec) {
  using Acc = typename Op<T>::Acc;
  const ReductionLayout layout(spec.in_shape(0), reduced_axes(spec));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(layout.num_partials()) * sizeof(Acc);
  prepared.run = [layout](const Launch& launch) {
    reduce<Op<T>>(layout, launch.in<T>(0), launch.out<T>(), launch.scratch<Acc>());
  };
  return prepared;
}

template <template <typename, typename...> typename Op>
Prepared prepare_numbers(const NodeSpec& spec) {
  return dispatch_numeric(spec.in_type(0), [&]<typename T>(T) { return prepare_as<Op, T>(spec); });
}

template <template <typename, typename...> typename Op>
Prepared prepare_ordered(const NodeSpec& spec) {
  return dispatch_any(spec.in_type(0), [&]<typename T>(T) { return prepare_as<Op, T>(spec); });
}

}  // namespace onnx_train::cpu
