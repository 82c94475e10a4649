// A recurrence along an axis, of which gradients of products are made; and a value whose gradient has no gradient.
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// y_0 = first, y_i = a_{i-1} y_{i-1} + b_{i-1} along an axis; from the other end if reverse.
FunctionText linear_scan(const FunctionCall& call) {
  Body f("LinearScan <axis: int = 0, reverse: int = 0, first: float = 0.0> (a, b) => (y)", call);
  const int64_t rank = call.inputs[0].rank(), axis = normalize_axis(call.integer("axis"), rank);
  const bool reverse = call.integer("reverse") != 0;
  f.depends_on(concat("axis_", axis, "_of_", rank, reverse ? "_reverse" : ""));
  std::vector<int64_t> to_front = {axis}, back;
  for (int64_t k = 0; k < rank; ++k) {
    if (k != axis) to_front.push_back(k);
    back.push_back(k < axis ? k + 1 : k == axis ? 0 : k);
  }
  const Term a = transpose(f.input("a"), to_front), b = transpose(f.input("b"), to_front);
  const Term start = expand(f.as(f.attribute("first"), f.input("a")), shape_from(a, 1));
  const Terms results = f.scan({start}, {a, b}, reverse, [](const Terms& now, const Terms& step) {
    return Terms{step[0] * now[0] + step[1], now[0]};
  });
  return f.text({transpose(results[1], back)});
}

}  // namespace

std::vector<FunctionRow> scan_functions() {
  return {
      {"LinearScan", linear_scan},
      // y = x, in a gradient that is not right to be differentiated again by x; `reason` says why, and the way out.
      function("DifferentiatedOnce <reason: string = \"\"> (x) => (y)", [](Term x) { return x; }),
  };
}

}  // namespace onnx_train
