#include "kernels/geometry/generators.h"

#include <algorithm>

#include "kernels/dispatch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Tensor known_shape(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  const int64_t rank = static_cast<int64_t>(shape.size());
  const auto place = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = place(spec.node().attr("start", 0)), end = place(spec.node().attr("end", rank));
  return Tensor::ints({shape.begin() + start, shape.begin() + std::max(start, end)});
}

Tensor known_size(const NodeSpec& spec) { return Tensor::scalar<int64_t>(spec.in_size(0)); }

Tensor known_constant(const NodeSpec& spec) { return constant_of(spec.node().output()); }

bool is_dense_constant(const NodeSpec& spec) {
  const Node& node = spec.node();
  return !node.has_attr("sparse_value") && !node.has_attr("value_string") && !node.has_attr("value_strings") &&
         spec.out_type() != DType::kString;
}

// Returns the coordinates of nonzero elements; their number must be known when the plan is built.
Tensor known_places(const NodeSpec& spec) {
  const Tensor& x = spec.constant(0);
  const int64_t rank = static_cast<int64_t>(x.shape().size());
  std::vector<int64_t> places;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (x.at(i) != 0) places.push_back(i);
  }
  const int64_t count = static_cast<int64_t>(places.size());
  if (spec.out_shape() != Shape{rank, count}) {
    fail(spec.node().label(), ": ", count, " elements are not zero, but its output is ", to_string(spec.out_shape()));
  }
  std::vector<int64_t> coordinates(static_cast<size_t>(rank * count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = places[static_cast<size_t>(i)];
    for (int64_t k = rank - 1; k >= 0; --k) {
      coordinates[static_cast<size_t>(k * count + i)] = rest % x.shape()[static_cast<size_t>(k)];
      rest /= x.shape()[static_cast<size_t>(k)];
    }
  }
  return Tensor::of<int64_t>({rank, count}, coordinates);
}

}  // namespace

const std::vector<KnownRow>& known_rows() {
  static const auto always = [](const NodeSpec&) { return true; };
  static const std::vector<KnownRow> rows = {
      {"Shape", always, known_shape},
      {"Size", always, known_size},
      {"Constant", is_dense_constant, known_constant},
      {"NonZero", [](const NodeSpec& spec) { return spec.is_constant(0); }, known_places},
  };
  return rows;
}

Tensor fill_value(const NodeSpec& spec) {
  Tensor value = spec.node().attr_tensor("value");
  if (value.empty()) value = Tensor::scalar<float>(0);
  if (value.size() != 1 || value.dtype() != spec.out_type()) {
    fail(spec.node().label(), ": its value is ", name(value.dtype()), to_string(value.shape()), " for an output of ",
         name(spec.out_type()), "; it must be one element of the output's type");
  }
  return value;
}

Eye eye_of(const NodeSpec& spec) {
  const int64_t rows = spec.out_shape()[0], columns = spec.out_shape()[1];
  return {rows, columns, std::clamp<int64_t>(spec.node().attr("k", 0), -rows, columns)};
}

bool supports_range(const NodeSpec& spec) {
  for (int i = 0; i < 3; ++i) {
    if (!spec.is_constant(i) || spec.in_size(i) != 1 || spec.in_type(i) != spec.out_type()) return false;
  }
  return is_numeric(spec.out_type());
}

}  // namespace onnx_train
