#include "kernels/geometry/indexing/scans.h"

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

bool has_one_constant(const NodeSpec& spec) { return spec.is_constant(1) && spec.constant(1).size() == 1; }

}  // namespace

Cumulative cumulative_of(const NodeSpec& spec) {
  return {AxisView(spec.in_shape(0), spec.constant(1).to_ints().at(0)), spec.node().attr("exclusive", 0) != 0,
          spec.node().attr("reverse", 0) != 0};
}

bool supports_cumulative(const NodeSpec& spec) { return is_numeric(spec.in_type(0)) && has_one_constant(spec); }

LinearScan linear_scan_of(const NodeSpec& spec) {
  return {AxisView(spec.in_shape(0), spec.node().attr("axis", 0)), spec.node().attr("reverse", 0) != 0,
          spec.node().attr("first", 0.0f)};
}

bool supports_linear_scan(const NodeSpec& spec) { return is_float_or_double(spec.out_type()) && spec.one_type(2); }

Extremum extremum_of(const NodeSpec& spec) {
  const AxisView x(spec.in_shape(0), spec.node().attr("axis", 0));
  return {x, spec.node().attr("select_last_index", 0) != 0, spec.node().attr("classes", x.size)};
}

bool supports_extremum(const NodeSpec& spec) {
  return is_numeric(spec.in_type(0)) && (spec.out_size() == 0 || spec.in_size(0) != 0);
}

Leaders leaders_of(const NodeSpec& spec) {
  const Leaders top{AxisView(spec.in_shape(0), spec.node().attr("axis", -1)), spec.constant(1).to_ints().at(0),
                    spec.node().attr("largest", 1) != 0};
  if (top.k < 0 || top.k > top.x.size) {
    fail(spec.node().label(), ": the ", top.k, " largest of an axis of size ", top.x.size, " are asked for");
  }
  return top;
}

bool supports_top_k(const NodeSpec& spec) { return is_numeric(spec.in_type(0)) && has_one_constant(spec); }

bool supports_sort_rows(const NodeSpec& spec) { return is_numeric(spec.in_type(0)); }

AxisView one_hot_axis(const NodeSpec& spec) { return {spec.out_shape(), spec.node().attr("axis", -1)}; }

bool supports_one_hot(const NodeSpec& spec) {
  return is_numeric(spec.in_type(0)) && is_movable(spec.in_type(2)) && spec.in_size(2) == 2 && spec.is_constant(1);
}

KeptPlaces kept_places(const NodeSpec& spec) {
  const bool flat = !spec.node().has_attr("axis");
  KeptPlaces kept{AxisView(flat ? Shape{spec.in_size(0)} : spec.in_shape(0), flat ? 0 : spec.node().attr("axis", 0)),
                  {}};
  const Tensor& condition = spec.constant(1);
  for (int64_t i = 0; i < condition.size() && i < kept.x.size; ++i) {
    if (condition.at(i) != 0) kept.places.push_back(i);
  }
  const int64_t count = static_cast<int64_t>(kept.places.size());
  if (spec.out_size() != kept.x.outer * count * kept.x.inner) {
    fail(spec.node().label(), ": ", count, " places hold, but its output is ", to_string(spec.out_shape()));
  }
  return kept;
}

bool supports_compress(const NodeSpec& spec) { return is_movable(spec.in_type(0)) && spec.is_constant(1); }

}  // namespace onnx_train
