// Kernels of the Reduce operators from the rows of kernels/reductions.h.
#pragma once

#include "kernels/cpu/reduction/reduce.h"
#include "kernels/cpu/reduction/reductions.h"
#include "kernels/reductions.h"

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

// The sink that makes the kernels of a group.
class ReductionSink {
 public:
  template <template <typename, typename...> typename Op, typename Types, typename InRegions>
  void add(const char* op, Types types, InRegions) {
    kernels_.push_back(
        {op, [types](const NodeSpec& spec) { return knows_reduced_axes(spec) && types.contains(spec.in_type(0)); },
         [types](const NodeSpec& spec) {
           return types.dispatch(spec.in_type(0), [&]<typename T>(T) { return prepare_as<Op, T>(spec); });
         }});
  }
  std::vector<Kernel> kernels() && { return std::move(kernels_); }

 private:
  std::vector<Kernel> kernels_;
};

}  // namespace onnx_train::cpu
