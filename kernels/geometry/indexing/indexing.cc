#include "kernels/geometry/indexing/indexing.h"

#include "kernels/dispatch.h"
#include "onnx_passes/functions/class_index.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

void check_gradient(const NodeSpec& spec, int dy, const RowIndices& rows) {
  if (spec.in_size(dy) == rows.x.outer * rows.count * rows.x.inner) return;
  fail(spec.node().label(), ": a gradient of shape ", to_string(spec.in_shape(dy)), " does not belong to ", rows.count,
       " indices into ", to_string(spec.out_shape()));
}

// Indices that the plan knows, as positions within a sequence, are checked before anything runs.
void check_constant_indices(const NodeSpec& spec, int input, int64_t size) {
  if (!spec.is_constant(input) || spec.node().graph().parent()) return;  // a branch may not be taken
  const Tensor& indices = spec.constant(input);
  for (int64_t i = 0; i < indices.size(); ++i) {
    const auto index = static_cast<int64_t>(indices.at(i));
    if (index >= -size && index < size) continue;
    fail_as(ErrorCode::kIndexOutOfRange, spec.node().label(), ": ", out_of_range(index, size),
            "; it follows from the sizes of the inputs: make them smaller (a text: its tokens, --block-size)");
  }
}

bool supports_reduction(const NodeSpec& spec) {
  const std::string reduction = spec.node().attr("reduction", "none");
  return spec.in_type(2) == spec.in_type(0) &&
         (reduction == "none" || (is_numeric(spec.in_type(0)) && is_scatter_reduction(reduction)));
}

}  // namespace

std::string out_of_range(int64_t index, int64_t size) {
  return concat("index ", index, " is outside of an axis of size ", size, "; it must be in [", -size, ", ", size - 1,
                "]");
}

std::string not_a_class(int64_t label, int64_t position, int64_t classes) {
  return concat("label ", label, " at position ", position, " is outside the ", classes, " classes 0 to ", classes - 1,
                "; correct the labels, or name it ignore_index if such positions do not count");
}

std::function<std::string(const Fault&)> explain_index(int64_t size) {
  return [size](const Fault& fault) {
    return is_no_class(fault.value) ? not_a_class(fault.value - kNoClass, fault.position, size)
                                    : out_of_range(fault.value, size);
  };
}

bool is_scatter_reduction(const std::string& name) {
  return name == "add" || name == "mul" || name == "max" || name == "min";
}

// ---- Rows

RowIndices gather_rows(const NodeSpec& spec) {
  const RowIndices rows{AxisView(spec.in_shape(0), spec.node().attr("axis", 0)), spec.in_size(1)};
  check_constant_indices(spec, 1, rows.x.size);
  return rows;
}

RowIndices gather_grad_rows(const NodeSpec& spec) {
  const RowIndices rows{AxisView(spec.out_shape(), spec.node().attr("axis", 0)), spec.in_size(1)};
  check_gradient(spec, 0, rows);
  return rows;
}

RowIndices add_gather_grad_rows(const NodeSpec& spec) {
  const RowIndices rows{AxisView(spec.out_shape(), 0), spec.in_size(2)};
  check_gradient(spec, 1, rows);
  return rows;
}

bool supports_gather(const NodeSpec& spec) { return is_movable(spec.in_type(0)) && is_index_type(spec.in_type(1)); }

bool supports_add_gather_grad(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type(0)) && spec.in_type(1) == spec.in_type(0) && is_index_type(spec.in_type(2)) &&
         !spec.out_shape().empty();
}

// ---- Tuples

TuplePlaces::TuplePlaces(const Node& node, const Shape& data, const Shape& indices, int64_t batch_dims) {
  if (indices.empty() || batch_dims < 0 || batch_dims >= static_cast<int64_t>(indices.size()) ||
      batch_dims + indices.back() > static_cast<int64_t>(data.size())) {
    fail(node.label(), ": indices of shape ", to_string(indices), " do not fit data of shape ", to_string(data));
  }
  const Shape data_strides = dense_strides(data);
  const auto first = static_cast<size_t>(batch_dims), last = first + static_cast<size_t>(indices.back());
  for (size_t k = 0; k + 1 < indices.size(); ++k) {
    count *= indices[k];
    if (k >= first) per_batch *= indices[k];
    if (k < first && indices[k] != data[k]) {
      fail(node.label(), ": batch axis ", k, " is ", indices[k], " in the indices and ", data[k], " in the data");
    }
  }
  for (size_t k = first; k < data.size(); ++k) {
    batch_stride *= data[k];
    if (k >= last) row *= data[k];
  }
  sizes.assign(data.begin() + static_cast<int64_t>(first), data.begin() + static_cast<int64_t>(last));
  strides.assign(data_strides.begin() + static_cast<int64_t>(first), data_strides.begin() + static_cast<int64_t>(last));
}

std::function<std::string(const Fault&)> TuplePlaces::explain() const {
  return [sizes = sizes](const Fault& fault) {
    return out_of_range(fault.value, sizes[static_cast<size_t>(fault.position) % sizes.size()]);
  };
}

TuplePlaces gather_nd_places(const NodeSpec& spec) {
  return {spec.node(), spec.in_shape(0), spec.in_shape(1), spec.node().attr("batch_dims", 0)};
}

TuplePlaces scatter_nd_places(const NodeSpec& spec) {
  TuplePlaces places(spec.node(), spec.in_shape(0), spec.in_shape(1), 0);
  if (spec.in_size(2) != places.count * places.row) {
    fail(spec.node().label(), ": updates of shape ", to_string(spec.in_shape(2)), " for indices of shape ",
         to_string(spec.in_shape(1)), " into ", to_string(spec.in_shape(0)));
  }
  return places;
}

bool supports_gather_nd(const NodeSpec& spec) {
  return is_movable(spec.in_type(0)) && spec.in_type(1) == DType::kInt64;
}

bool supports_scatter_nd(const NodeSpec& spec) { return supports_gather_nd(spec) && supports_reduction(spec); }

// ---- Elements

ElementLines::ElementLines(const Node& node, const Shape& data, const Shape& indices) {
  const int64_t axis = normalize_axis(node.attr("axis", 0), static_cast<int64_t>(data.size()));
  const Shape data_strides = dense_strides(data), index_strides = dense_strides(indices);
  bool fits = data.size() == indices.size();
  for (size_t k = 0; fits && k < data.size(); ++k) {
    count *= indices[k];
    if (static_cast<int64_t>(k) == axis) {
      length = indices[k];
      limit = data[k];
      index_stride = index_strides[k];
      data_stride = data_strides[k];
      continue;
    }
    fits = indices[k] <= data[k];
    num_lines *= indices[k];
    lines.push_back({indices[k], index_strides[k], data_strides[k]});
  }
  if (!fits || lines.size() > kMostAxes) {
    fail(node.label(), ": indices of shape ", to_string(indices), " do not fit data of shape ", to_string(data));
  }
}

ElementLines gather_element_lines(const NodeSpec& spec) { return {spec.node(), spec.in_shape(0), spec.in_shape(1)}; }

ElementLines scatter_element_lines(const NodeSpec& spec) {
  ElementLines lines(spec.node(), spec.in_shape(0), spec.in_shape(1));
  if (spec.in_shape(2) != spec.in_shape(1)) {
    fail(spec.node().label(), ": updates of shape ", to_string(spec.in_shape(2)), " for indices of shape ",
         to_string(spec.in_shape(1)));
  }
  return lines;
}

bool supports_gather_elements(const NodeSpec& spec) { return supports_gather(spec); }

bool supports_scatter_elements(const NodeSpec& spec) { return supports_gather(spec) && supports_reduction(spec); }

}  // namespace onnx_train
