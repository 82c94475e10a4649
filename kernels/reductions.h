// The Reduce operators of every device, one row each: the operator, its element types, its operations (a class of
// kernels/math/reducers.h), and whether fusion regions may hold it. A device makes what it needs from these rows with a
// sink:
//
//   sink.template add<Operations>(op, types, in_regions)
//
// `op` is a literal. The rows are grouped, so that a device can compile each group in a separate file.
#pragma once

#include <type_traits>

#include "kernels/element_types.h"
#include "kernels/math/reducers.h"

namespace onnx_train {

constexpr std::true_type kInRegions;
constexpr std::false_type kAlone;

template <typename Sink>
void for_each_sum(Sink& sink) {
  sink.template add<math::SumOf>("ReduceSum", Numbers{}, kInRegions);
  sink.template add<math::MeanOf>("ReduceMean", Numbers{}, kInRegions);
  sink.template add<math::AbsoluteSumOf>("ReduceL1", Numbers{}, kInRegions);
  sink.template add<math::LogOfSum>("ReduceLogSum", Numbers{}, kAlone);
}

template <typename Sink>
void for_each_norm(Sink& sink) {
  sink.template add<math::NormOf>("ReduceL2", Numbers{}, kInRegions);
  sink.template add<math::SquareSumOf>("ReduceSumSquare", Numbers{}, kInRegions);
  sink.template add<math::ProductOf>("ReduceProd", Numbers{}, kAlone);
  sink.template add<math::LogSumExpOf>("ReduceLogSumExp", Numbers{}, kAlone);
}

template <typename Sink>
void for_each_extremum(Sink& sink) {
  sink.template add<math::MaximumOf>("ReduceMax", NumbersAndBool{}, kInRegions);
  sink.template add<math::MinimumOf>("ReduceMin", NumbersAndBool{}, kInRegions);
}

}  // namespace onnx_train
