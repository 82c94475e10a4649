#include "kernels/geometry/recurrent.h"

#include "kernels/dispatch.h"

namespace onnx_train {

Extents extents_of(const NodeSpec& spec, const Recurrence& recurrence, int y) {
  const int64_t gates = recurrence.gates();
  if (y < 0) return {spec.in_shape(0)[0], spec.in_shape(0)[1], spec.in_shape(2)[0], spec.in_shape(2)[2], gates};
  const Shape shape = spec.in_shape(y);
  return {shape[0], shape[2], shape[1], shape[3], gates};
}

Order order_of(const Recurrence& recurrence, int64_t steps) {
  Order order;
  order.steps = steps;
  for (size_t d = 0; d < recurrence.backwards.size(); ++d) order.backwards[d] = recurrence.backwards[d];
  return order;
}

bool takes_recurrence(const NodeSpec& spec) {
  const DType dtype = spec.in_type(0);
  const auto fits = [&](const Value* value) { return !value || !is_float(value->dtype()) || value->dtype() == dtype; };
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!fits(spec.node().input(i))) return false;
  }
  for (int i = 0; i < spec.num_outputs(); ++i) {
    if (!fits(spec.node().output(i))) return false;
  }
  const bool rounds = find_recurrence(spec.node()).round_operands;  // rounding to bfloat16 excludes float64
  return is_float_or_double(dtype) && (dtype == DType::kFloat || !rounds) && spec.node().attr("layout", 0) == 0;
}

}  // namespace onnx_train
