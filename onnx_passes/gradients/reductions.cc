// Rules of reductions. Their axes may be an attribute's default, a constant or computed; sizes may be unknown.
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

// A value of the output's shape as one that broadcasts to the input's: reduced axes come back with size 1. Where all
// axes are reduced the value is a scalar, which broadcasts as it is.
Var restore(Grad& g, Var v) {
  if (!v || g.node().attr("keepdims", 1) != 0 || !g.x(1)) return v;
  return g.b().op("Unsqueeze", {v, g.x(1)});
}

// `op` over the node's axes, with the reduced axes kept.
Var over_same_axes(Grad& g, const char* op, Var v) {
  Attrs attrs;
  if (g.node().attr("noop_with_empty_axes", 0) != 0) attrs.emplace_back("noop_with_empty_axes", 1);
  return g.b().op(op, {v, g.x(1)}, attrs);
}

Var expand_to_x(Grad& g, Var v) { return expand_like(v, g.x()); }

// How many elements of x make one of y.
Var count(Grad& g) {
  const TensorType &x = g.x().type(), &y = g.y().type();
  if (x.is_static() && y.is_static() && num_elements(y.shape()) > 0) {
    return g.b().scalar(x.dtype, static_cast<double>(num_elements(x.shape()) / num_elements(y.shape())));
  }
  return cast_like(size(g.x()), g.dy()) / cast_like(size(g.y()), g.dy());
}

// y = max x (min x)    dx = dy / (number of elements equal to y) where x = y
Gradients extremum(Grad& g) {
  const Var wins = cast_like(equal(g.x(), restore(g, g.y())), g.x());
  return g.to(restore(g, g.dy()) / over_same_axes(g, "ReduceSum", wins) * wins);
}

// y = Π x    dx = dy y / x; with z zeros among the factors and p the product of the others: dy p / x if z is 0,
//            dy p for the zero itself if z is 1, else 0
Gradients product(Grad& g) {
  const Var x = g.x();
  const Var is_zero = cast_like(equal(x, g.b().scalar(x.dtype(), 0)), x);
  const Var factor = x + is_zero;  // 1 in place of 0
  const Var zeros = over_same_axes(g, "ReduceSum", is_zero);
  const Var others = over_same_axes(g, "ReduceProd", factor);
  return g.to(restore(g, g.dy()) * others * cast_like(equal(zeros, is_zero), x) / factor);
}

// y = sqrt(Σ x²)    dx = dy x / y, 0 where y = 0
Gradients norm(Grad& g) {
  const Var zero = g.b().scalar(g.y().dtype(), 0), one = g.b().scalar(g.y().dtype(), 1);
  return g.to(g.x() * restore(g, g.dy() / where(equal(g.y(), zero), one, g.y())));
}

// y_i = Σ x_j over j ≤ i    dx_j = Σ dy_i over i ≥ j: the sum from the other end
Gradients cumulative_sum(Grad& g) {
  const Node& node = g.node();
  return g.to(g.b().op("CumSum", {g.dy(), g.x(1)},
                       {{"exclusive", node.attr("exclusive", 0)}, {"reverse", 1 - node.attr("reverse", 0)}}));
}

}  // namespace

std::vector<GradientRule> reduction_rules() {
  return {
      // y = Σ x    dx = dy
      {"ReduceSum", [](Grad& g) { return g.to(expand_to_x(g, restore(g, g.dy()))); }},
      // y = Σ x / n    dx = dy / n
      {"ReduceMean", [](Grad& g) { return g.to(expand_to_x(g, restore(g, g.dy()) / count(g))); }},
      {"ReduceMax", extremum},
      {"ReduceMin", extremum},
      {"ReduceProd", product},
      // y = Σ |x|    dx = dy sign(x)
      {"ReduceL1", [](Grad& g) { return g.to(restore(g, g.dy()) * sign(g.x())); }},
      {"ReduceL2", norm},
      // y = log Σ x    dx = dy / Σ x
      {"ReduceLogSum", [](Grad& g) { return g.to(expand_to_x(g, restore(g, g.dy() * exp(-g.y())))); }},
      // y = log Σ exp(x)    dx = dy exp(x - y)
      {"ReduceLogSumExp", [](Grad& g) { return g.to(restore(g, g.dy()) * exp(g.x() - restore(g, g.y()))); }},
      // y = Σ x²    dx = 2 dy x
      {"ReduceSumSquare", [](Grad& g) { return g.to(restore(g, g.dy() * 2.0) * g.x()); }},
      {"CumSum", cumulative_sum},
  };
}

}  // namespace onnx_train
