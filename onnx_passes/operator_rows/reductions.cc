#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

std::vector<Operator> reduction_operators() {
  constexpr const char* kArg = "x[S...] -> y:int64 where -#S <= @axis:0 < #S, 0 <= @keepdims:1 < 2";
  std::vector<Operator> rows = {
      Operator{"ArgMax", kArg}.narrow({0}, {}),
      Operator{"ArgMin", kArg}.narrow({0}, {}),
      {"CumSum", "x[S...] axis[] -> y[S...]"},
      {"CumProd", "x[S...] axis[] -> y[S...]"},
      Operator{"TopK", "x[S...] k[] -> values? indices? where -#S <= @axis:-1 < #S"}.sized_by_inputs({1}),
      {"LinearScan", "a[S...] b[S...] -> y[S...] where -#S <= @axis:0 < #S", kDomain, ElementTypes::kOneFloat},
      {"GlobalNorm", "g:float more*:float -> norm:float[]", kDomain},
  };
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                         "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"}) {
    rows.push_back(Operator{op, "x axes? -> y where 0 <= @keepdims:1 < 2"}.of_kind(OperatorKind::kReduction));
  }
  return rows;
}

}  // namespace onnx_train
