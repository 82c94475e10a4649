// Rules of reductions. Their axes may be an attribute's default, a constant or computed; sizes may be unknown.
#include <algorithm>
#include <optional>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {

Var differentiated_once(Var x, const std::string& reason) {
  return call(x.builder(), "DifferentiatedOnce", {x}, {{"reason", reason}});
}

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
  const Var all = cast_like(size(g.x()), g.dy());
  return all / cast_like(size(g.y()), g.dy());
}

// y = max x (min x)    dx = dy / (number of elements equal to y) where x = y
Gradients extremum(Grad& g) {
  const Var wins = cast_like(equal(g.x(), restore(g, g.y())), g.x());
  const Var dy = restore(g, g.dy());
  return g.to(dy / over_same_axes(g, "ReduceSum", wins) * wins);
}

// y_0 = first, y_i = a_{i-1} y_{i-1} + b_{i-1} along an axis, or from the other end
Var linear_scan(Var a, Var b, int64_t axis, bool reverse, float first) {
  return call(a.builder(), "LinearScan", {a, b}, {{"axis", axis}, {"reverse", reverse ? 1 : 0}, {"first", first}});
}

// LinearScan    db_i = dy_{i+1} + a_{i+1} db_{i+1}: a recurrence from the other end    da_i = db_i y_i
Gradients linear_scan_gradient(Grad& g) {
  const bool reverse = g.node().attr("reverse", 0) != 0;
  const Var db = linear_scan(g.x(0), g.dy(), g.node().attr("axis", 0), !reverse, 0);
  return g.to({db * g.y(), db});
}

// Along an axis, the product of all elements but each: of those before it and of those after it.
Var product_of_others(Var x, int64_t axis) {
  const Var none = zeros_like(x);
  const Var before = linear_scan(x, none, axis, false, 1);
  return before * linear_scan(x, none, axis, true, 1);
}

// The axes of a reduction, in order; nothing if they are computed.
std::optional<std::vector<int64_t>> reduced_axes(Grad& g) {
  const int64_t rank = g.x().rank();
  std::vector<int64_t> axes;
  if (g.x(1)) {
    const Tensor given = constant_of(g.x(1).value());
    if (given.empty()) return std::nullopt;
    for (const int64_t axis : given.to_ints()) axes.push_back(normalize_axis(axis, rank));
  }
  if (axes.empty() && g.node().attr("noop_with_empty_axes", 0) == 0) {
    for (int64_t axis = 0; axis < rank; ++axis) axes.push_back(axis);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

// The same along several axes: behind the others, as one.
Var product_of_others(Var x, const std::vector<int64_t>& axes) {
  if (axes.empty()) return ones_like(x);
  if (axes.size() == 1) return product_of_others(x, axes[0]);
  std::vector<int64_t> order;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    if (!std::binary_search(axes.begin(), axes.end(), axis)) order.push_back(axis);
  }
  const auto kept = static_cast<int64_t>(order.size());
  order.insert(order.end(), axes.begin(), axes.end());
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const Var moved = kept == 0 ? x : transpose(x, order), sizes = shape_of(moved);
  const Var count = x.builder().op("ReduceProd", {slice(sizes, kept, x.rank(), 0)}, {{"keepdims", 1}});
  const Var flat = reshape(moved, kept == 0 ? count : concat({slice(sizes, 0, kept, 0), count}, 0));
  const Var others = reshape(product_of_others(flat, kept), sizes);
  return kept == 0 ? others : transpose(others, back);
}

// y = Π x    dx = dy Π of the others. Where the axes are not known: dy y / x; with z zeros among the factors and p the
// product of the others: dy p / x if z is 0, dy p for the zero itself if z is 1, else 0
Gradients product(Grad& g) {
  const Var dy = restore(g, g.dy());
  if (g.x().value()->has_rank()) {
    const auto axes = reduced_axes(g);
    if (axes) return g.to(dy * product_of_others(g.x(), *axes));
  }
  const Var x = differentiated_once(g.x(),
                                    "a gradient of its gradient needs axes that are constants, and the rank of its "
                                    "input; export the model with constant axes");
  const Var is_zero = cast_like(equal(x, g.b().scalar(x.dtype(), 0)), x);
  const Var factor = x + is_zero;  // 1 in place of 0
  const Var zeros = over_same_axes(g, "ReduceSum", is_zero);
  const Var dothers = dy * over_same_axes(g, "ReduceProd", factor);
  return g.to(dothers * cast_like(equal(zeros, is_zero), x) / factor);
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

// y_i = Π x_j over j ≤ i    dx_j = p_j r_j, with p_j = Π x_k over k < j and r_j = Σ over i ≥ j of dy_i Π x_k over
// j < k ≤ i: r_j = dy_j + x_{j+1} r_{j+1}. Exclusive: r_j = dy_{j+1} + x_{j+1} r_{j+1}
Gradients cumulative_product(Grad& g) {
  const Node& node = g.node();
  const Var x = g.x(), dy = g.dy();
  const bool exclusive = node.attr("exclusive", 0) != 0, reverse = node.attr("reverse", 0) != 0;
  const int64_t axis = constant_of(g.x(1).value()).to_ints().at(0);
  const Var before = g.b().op("CumProd", {x, g.x(1)}, {{"exclusive", 1}, {"reverse", reverse ? 1 : 0}});
  const Var after = exclusive ? linear_scan(x, dy, axis, !reverse, 0) : dy + linear_scan(x, x * dy, axis, !reverse, 0);
  return g.to(before * after);
}

std::string reason_of_once(const Node& node) { return node.attr("reason", ""); }

std::string computed_axis(const Node& node) {
  if (!constant_of(node.input(1)).empty()) return unknown_rank(node);
  return concat("its axis '", node.input(1)->name(), "' is computed; export the model with a constant axis");
}

}  // namespace

std::vector<GradientRule> reduction_rules() {
  return {
      // y = Σ x    dx = dy
      {"ReduceSum", [](Grad& g) { return g.to(expand_to_x(g, restore(g, g.dy()))); }},
      // y = Σ x / n    dx = dy / n
      {"ReduceMean",
       [](Grad& g) {
         const Var dy = restore(g, g.dy());
         return g.to(expand_to_x(g, dy / count(g)));
       }},
      {"ReduceMax", extremum},
      {"ReduceMin", extremum},
      {"ReduceProd", product},
      // y = Σ |x|    dx = dy sign(x)
      {"ReduceL1",
       [](Grad& g) {
         const Var dy = restore(g, g.dy());
         return g.to(dy * sign(g.x()));
       }},
      {"ReduceL2", norm},
      // y = log Σ x    dx = dy / Σ x
      {"ReduceLogSum", [](Grad& g) { return g.to(expand_to_x(g, restore(g, g.dy() * exp(-g.y())))); }},
      // y = log Σ exp(x)    dx = dy exp(x - y)
      {"ReduceLogSumExp",
       [](Grad& g) {
         const Var dy = restore(g, g.dy());
         return g.to(dy * exp(g.x() - restore(g, g.y())));
       }},
      // y = Σ x²    dx = 2 dy x
      {"ReduceSumSquare", [](Grad& g) { return g.to(restore(g, g.dy() * 2.0) * g.x()); }},
      {"CumSum", cumulative_sum},
      {"CumProd", cumulative_product, Trait::kNone, "", computed_axis},
      {"LinearScan", linear_scan_gradient, Trait::kNone, kDomain},
      // y = x in a gradient
      {"DifferentiatedOnce", [](Grad& g) { return g.to(g.dy()); }, Trait::kNone, kDomain, reason_of_once},
  };
}

}  // namespace onnx_train
