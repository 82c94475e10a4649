#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using enum ElementTypes;

constexpr const char* kGatherGrad =
    "dy[Y...] indices:index[I...] shape:int64[#X] -> dx[X...] where 0 <= @axis:0 < #X, #Y = #X + #I - 1";
constexpr const char* kCoalesceRows = "dy indices:index shape:int64[#S + 1] -> rows[P, S...] places:int64[P]";

}  // namespace

std::vector<Operator> indexing_operators() {
  return {
      Operator{"Gather", "x[S...] indices:index[I...] -> y[Y...] where -#S <= @axis:0 < #S, #Y = #S + #I - 1"}
          .of_kind(OperatorKind::kExtraction)
          .narrow({}, {0})
          .selecting({0, 1})
          .in_precision(PrecisionRole::kLookup)
          .weights_at({0})
          .moving(Traffic::kWritten),
      Operator{"GatherElements", "x[S...] indices:index[I...] -> y[I...] where #I = #S, -#S <= @axis:0 < #S"}.moving(
          Traffic::kWritten),
      {"ScatterElements", "x[S...] indices:index[I...] updates[I...] -> y[S...] where #I = #S, -#S <= @axis:0 < #S"},
      Operator{"GatherND",
               "x[S...] indices:int64[I..., K] -> y where 0 <= @batch_dims:0 <= #I, @batch_dims:0 + K <= #S"}
          .moving(Traffic::kWritten),
      {"TensorScatter",
       "past[S...] update[U...] write_indices?:int64[_] -> present[S...] where #U = #S, -#S <= @axis:-2 < #S"},
      {"ScatterND", "x[S...] indices:int64[I..., K] updates[U...] -> y[S...] where K <= #S, #U = #I + #S - K"},
      Operator{"OneHot", "indices[I...] depth[] values[2] -> y[Y...] where #Y = #I + 1, -#Y <= @axis:-1 < #Y"}
          .sized_by_inputs({1})
          .with_settings({0, InputRange::kAll}),
      {"NonZero", "x -> y:int64[_, _]"},
      {"Compress", "x[S...] condition:bool[_] -> y"},
      {"Unique", "x[S...] -> y indices?:int64[_] inverse?:int64[_] counts?:int64[_]"},
      {"SortRows", "x[N, _] -> order:int64[N]", kDomain},
      Operator{"GatherGrad", kGatherGrad, kDomain, kOneFloat}.narrow({0}, {}),
      {"AddGatherGrad", "sum[R, S...] dy[Y...] indices:index[I...] -> y[R, S...] where #Y = #I + #S", kDomain,
       kOneFloat},
      Operator{"CoalesceRows", kCoalesceRows, kDomain, kOneFloat}.narrow({0}, {}),
  };
}

}  // namespace onnx_train
