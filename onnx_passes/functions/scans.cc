// A recurrence along an axis, of which gradients of products are made; and a value whose gradient has no gradient.
#include "onnx_passes/functions/body_text.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::vector<FunctionRow> scan_functions();

namespace {

// y_0 = first, y_i = a_{i-1} y_{i-1} + b_{i-1} along an axis; from the other end if reverse.
FunctionText linear_scan(const FunctionCall& made) {
  int64_t axis = 0, reverse = 0;
  for (const Attr& attr : made.attrs) {
    if (attr.name == "axis") axis = std::get<int64_t>(attr.value);
    if (attr.name == "reverse") reverse = std::get<int64_t>(attr.value);
  }
  const int64_t rank = made.inputs[0].rank();
  axis = normalize_axis(axis, rank);
  std::string to_front = concat(axis), back;
  for (int64_t k = 0; k < rank; ++k) {
    if (k != axis) to_front += concat(", ", k);
    back += concat(k > 0 ? ", " : "", k < axis ? k + 1 : k == axis ? 0 : k);
  }
  BodyText t;
  t.line("a_steps = Transpose <perm = [", to_front, "]> (a)");
  t.line("b_steps = Transpose <perm = [", to_front, "]> (b)");
  t.line("first_float = Constant <value_float: float = @first> ()");
  t.line("first_like = CastLike (first_float, a)");
  t.line("step_shape = Shape <start = 1> (a_steps)");
  t.line("start = Expand (first_like, step_shape)");
  t.line("last, steps = Scan <body = step (now, factor, term) => (next, y_now) {");
  t.line("  product = Mul (factor, now)");
  t.line("  next = Add (product, term)");
  t.line("  y_now = Identity (now)");
  t.line("}, num_scan_inputs = 2, scan_input_directions = [", reverse, ", ", reverse, "], scan_output_directions = [",
         reverse, "]> (start, a_steps, b_steps)");
  t.line("y = Transpose <perm = [", back, "]> (steps)");
  return {concat("LinearScan <axis: int = 0, reverse: int = 0, first: float = 0.0> (a, b) => (y) {\n", t.text(), "}\n"),
          concat("axis_", axis, "_of_", rank, reverse ? "_reverse" : "")};
}

// y = x, in a gradient that is not right to be differentiated again by x; `reason` says why, and the way out.
constexpr const char* kDifferentiatedOnce = R"(
DifferentiatedOnce <reason: string = ""> (x) => (y) {
  y = Identity (x)
}
)";

}  // namespace

std::vector<FunctionRow> scan_functions() {
  return {{"LinearScan", linear_scan}, function("DifferentiatedOnce", kDifferentiatedOnce)};
}

}  // namespace onnx_train
