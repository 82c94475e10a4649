// Rules of operators that pick elements by index. Gathering and scattering are each other's transposes.
#include <functional>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {
namespace {

Var zeros_of(Var x) { return full(shape_of(x), x.dtype(), 0); }

// y = x[.., indices, ..]    dx[.., i, ..] = Σ dy at the places that show i
Gradients gather_gradient(Grad& g) {
  const int64_t axis = g.node().attr("axis", 0);
  const int64_t from_start = axis < 0 ? normalize_axis(axis, g.x().rank()) : axis;
  return g.to(call(g.b(), "GatherGrad", {g.dy(), g.x(1), shape_of(g.x())}, {{"axis", from_start}}));
}

Attrs along(const Node& node, const char* reduction) {
  return {{"axis", node.attr("axis", 0)}, {"reduction", reduction}};
}

// y[p] = x[p with indices[p] along the axis]    dx = dy added at these places
Gradients gather_elements_gradient(Grad& g) {
  return g.to(g.b().op("ScatterElements", {zeros_of(g.x()), g.x(1), g.dy()}, along(g.node(), "add")));
}

// indices with the coordinates of their batch in front, so that they count from the start of x: for each batch axis
// k, a column 0, 1, ... that runs along axis k.
Var with_batch_coordinates(Builder& b, Var indices, int64_t batch_dims) {
  const int64_t rank = indices.rank();
  const Var one_column = concat({b.op("Shape", {indices}, {{"end", rank - 1}}), b.ints({1})}, 0);
  std::vector<Var> columns;
  for (int64_t k = 0; k < batch_dims; ++k) {
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < rank; ++i) {
      if (i != k) axes.push_back(i);
    }
    const Var count = squeeze(dim(indices, k), {0});
    const Var line = b.op("Range", {b.scalar(DType::kInt64, 0), count, b.scalar(DType::kInt64, 1)});
    columns.push_back(expand(unsqueeze(line, axes), one_column));
  }
  columns.push_back(indices);
  return concat(columns, -1);
}

// y[p] = x[indices[p]]    dx = dy added at these places
Gradients gather_nd_gradient(Grad& g) {
  const int64_t batch_dims = g.node().attr("batch_dims", 0);
  const Var indices = batch_dims == 0 ? g.x(1) : with_batch_coordinates(g.b(), g.x(1), batch_dims);
  return g.to(g.b().op("ScatterND", {zeros_of(g.x()), indices, g.dy()}, {{"reduction", "add"}}));
}

// A scatter operator and the gather that reads the places it writes.
struct Places {
  std::function<Var(Var x)> gather;
  std::function<Var(Var x, Var updates, const char* reduction)> scatter;
};

// y = x, with u instead at some places         dx = dy with 0 there    du = dy there
// y = x + Σ of the u at a place                dx = dy                 du = dy there
// y = x Π of the u at a place                  dx, du = dy (y over the factor itself): with z zeros among the factors
//                                              and p the product of the others, p dy / factor where z is 1 for the
//                                              zero itself or 0, else 0
// y = the largest (smallest) of x and the u    dx, du = dy / (number of winners) where they equal y
Gradients scatter_gradient(Grad& g, const Places& at) {
  const std::string reduction = g.node().attr("reduction", "none");
  const Var dy = g.dy(), x = g.x(0), u = g.x(2);
  if (reduction == "none") {
    return g.to({g.needs(0) ? at.scatter(dy, zeros_of(u), "none") : Var(), Var(), at.gather(dy)});
  }
  if (reduction == "add") return g.to({dy, Var(), at.gather(dy)});
  if (reduction == "mul") {
    const char* const reason =
        "it is of the gradient of a scatter with reduction mul, which has no gradient where a factor is 0; gather the "
        "factors and multiply them";
    const Var data = differentiated_once(x, reason), factors = differentiated_once(u, reason);
    const auto is_zero = [](Var v) { return cast_like(equal(v, v.builder().scalar(v.dtype(), 0)), v); };
    const Var x_zero = is_zero(data), u_zero = is_zero(factors);
    const Var x_factor = data + x_zero, u_factor = factors + u_zero;  // 1 in place of 0
    const Var zeros = at.scatter(x_zero, u_zero, "add");
    const Var dy_product = dy * at.scatter(x_factor, u_factor, "mul");
    const Var dx = dy_product * cast_like(equal(zeros, x_zero), x) / x_factor;
    const Var du_product = at.gather(dy_product), u_flows = cast_like(equal(at.gather(zeros), u_zero), u);
    return g.to({dx, Var(), du_product * u_flows / u_factor});
  }
  const Var x_wins = cast_like(equal(x, g.y()), x), u_wins = cast_like(equal(u, at.gather(g.y())), u);
  const Var share = dy / at.scatter(x_wins, u_wins, "add");
  return g.to({share * x_wins, Var(), at.gather(share) * u_wins});
}

Gradients scatter_elements_gradient(Grad& g) {
  const Var indices = g.x(1);
  const int64_t axis = g.node().attr("axis", 0);
  return scatter_gradient(g, {[&](Var x) {
                                return g.b().op("GatherElements", {x, indices}, {{"axis", axis}});
                              },
                              [&](Var x, Var updates, const char* reduction) {
                                return g.b().op("ScatterElements", {x, indices, updates}, along(g.node(), reduction));
                              }});
}

Gradients scatter_nd_gradient(Grad& g) {
  const Var indices = g.x(1);
  return scatter_gradient(g, {[&](Var x) {
                                return g.b().op("GatherND", {x, indices});
                              },
                              [&](Var x, Var updates, const char* reduction) {
                                return g.b().op("ScatterND", {x, indices, updates}, {{"reduction", reduction}});
                              }});
}

// y = off + (on - off) m, m the mask of the hot places    d[off, on] = [Σ dy (1 - m), Σ dy m]
Gradients one_hot_gradient(Grad& g) {
  const Var bits = g.b().constant(Tensor::of<double>({2}, {0, 1}).cast(g.dy().dtype()));
  const Var mask = g.b().like(g.node(), {g.x(0), g.x(1), bits})[0];
  const Var on = sum_all(g.dy() * mask), off = sum_all(g.dy()) - on;
  return g.to({Var(), Var(), concat({unsqueeze(off, {0}), unsqueeze(on, {0})}, 0)});
}

// values = the k largest (smallest) of x along an axis    dx = dvalues at their indices
Gradients top_k_gradient(Grad& g) {
  const Var indices = g.y(1) ? g.y(1) : g.b().like(g.node(), {g.x(0), g.x(1)}, 2)[1];
  const int64_t axis = g.node().attr("axis", -1);
  return g.to(g.b().op("ScatterElements", {zeros_of(g.x()), indices, g.dy()}, {{"axis", axis}}));
}

// The gradient of elements of x that are `taken` along the node's axis (of x flattened, without one).
Gradients gradient_of_taken(Grad& g, Var taken) {
  if (!g.node().has_attr("axis")) {
    const Var total = reshape(size(g.x()), std::vector<int64_t>{1});
    return g.to(reshape_like(call(g.b(), "GatherGrad", {g.dy(), taken, total}, {{"axis", 0}}), g.x()));
  }
  const int64_t axis = g.node().attr("axis", 0);
  const int64_t from_start = axis < 0 ? normalize_axis(axis, g.x().rank()) : axis;
  return g.to(call(g.b(), "GatherGrad", {g.dy(), taken, shape_of(g.x())}, {{"axis", from_start}}));
}

// y = x where the condition holds    dx = dy at these places
Gradients compress_gradient(Grad& g) {
  return gradient_of_taken(g, reshape(g.b().op("NonZero", {g.x(1)}), std::vector<int64_t>{-1}));
}

// y, indices = the distinct elements or slices of x, and where each comes first    dx = dy at these places
Gradients unique_gradient(Grad& g) {
  return gradient_of_taken(g, g.y(1) ? g.y(1) : g.b().like(g.node(), {g.x()}, 2)[1]);
}

}  // namespace

std::vector<GradientRule> indexing_rules() {
  return {
      {"Gather", gather_gradient},        {"GatherElements", gather_elements_gradient},
      {"GatherND", gather_nd_gradient},   {"ScatterElements", scatter_elements_gradient},
      {"ScatterND", scatter_nd_gradient}, {"OneHot", one_hot_gradient},
      {"TopK", top_k_gradient},           {"Compress", compress_gradient},
      {"NonZero", nullptr, Trait::kZero}, {"ArgMax", nullptr, Trait::kZero},
      {"ArgMin", nullptr, Trait::kZero},  {"Unique", unique_gradient},
  };
}

}  // namespace onnx_train
