// Operators that read or write single elements: GatherElements, ScatterElements, OneHot, NonZero, Compress.
#include <cstring>
#include <functional>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/movement/indices.h"
#include "kernels/cpu/movement/scatter_rows.h"
#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/axis_view.h"

namespace onnx_train::cpu {
namespace {

// ---- GatherElements, ScatterElements

// The lines of the indices along the axis, and the corresponding lines of the data. Different lines access different
// elements of the data, so each thread can process whole lines in order.
struct ElementLines {
  std::vector<CopyAxis> lines;  // `from` traverses the indices, `to` the data
  int64_t num_lines = 1;
  int64_t length = 1;
  int64_t index_stride = 1, data_stride = 1;
  int64_t limit = 1;  // size of the data's axis
  int64_t count = 1;  // of indices

  ElementLines(const Node& node, const Shape& data, const Shape& indices) {
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
    if (!fits || lines.size() > kMaxAxes) {
      fail(node.label(), ": indices of shape ", to_string(indices), " do not fit data of shape ", to_string(data));
    }
  }

  // Calls f(offset in the indices, offset in the data) for all indices; `indices` are already checked.
  template <typename F>
  void for_each(const int64_t* indices, F&& f) const {
    parallel_for(count == 0 ? 0 : num_lines, kElementGrain / 4 / (length + 1) + 1, [&](int64_t begin, int64_t end) {
      StridedIndex cursor(lines.data(), static_cast<int>(lines.size()), begin);
      for (int64_t l = begin; l < end; ++l, cursor.next()) {
        for (int64_t i = 0; i < length; ++i) {
          const int64_t place = cursor.from() + i * index_stride;
          f(place, cursor.to() + indices[place] * data_stride);
        }
      }
    });
  }
};

Prepared prepare_gather_elements(const NodeSpec& spec) {
  const ElementLines places(spec.node(), spec.in_shape(0), spec.in_shape(1));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(places.count) * sizeof(int64_t);
  prepared.explain = explain_index(places.limit);
  prepared.run = dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [places, type = spec.in_type(1)](const Launch& launch) {
      int64_t* indices = launch.scratch<int64_t>();
      if (!read_indices(launch, 1, type, places.count, places.limit, indices)) return;
      const T* in = launch.in<T>(0);
      T* out = launch.out<T>();
      places.for_each(indices, [&](int64_t to, int64_t from) { out[to] = in[from]; });
    };
  });
  return prepared;
}

bool supports_gather_elements(const NodeSpec& spec) {
  return is_movable(spec.in_type(0)) && is_index_type(spec.in_type(1));
}

template <typename T, typename Combine>
std::function<void(const Launch&)> scatter_elements(const NodeSpec& spec, const ElementLines& places, Combine combine) {
  return [places, combine, copy = StridedCopy({{spec.in_size(0), 1, 1}}, sizeof(T)),
          type = spec.in_type(1)](const Launch& launch) {
    int64_t* indices = launch.scratch<int64_t>();
    if (!read_indices(launch, 1, type, places.count, places.limit, indices)) return;
    if (launch.inputs[0] != launch.outputs[0]) copy.run(launch.inputs[0], launch.outputs[0]);
    const T* updates = launch.in<T>(2);
    T* out = launch.out<T>();
    places.for_each(indices, [&](int64_t from, int64_t to) { out[to] = combine(out[to], updates[from]); });
  };
}

Prepared prepare_scatter_elements(const NodeSpec& spec) {
  const ElementLines places(spec.node(), spec.in_shape(0), spec.in_shape(1));
  if (spec.in_shape(2) != spec.in_shape(1)) {
    fail(spec.node().label(), ": updates of shape ", to_string(spec.in_shape(2)), " for indices of shape ",
         to_string(spec.in_shape(1)));
  }
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(places.count) * sizeof(int64_t);
  prepared.explain = explain_index(places.limit);
  prepared.in_place = {{0, 0}};
  const std::string reduction = spec.node().attr("reduction", "none");
  if (reduction == "none") {
    prepared.run = dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T) {
      return scatter_elements<T>(spec, places, [](T, T b) { return b; });
    });
  } else {
    prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) {
      return with_reduction<T>(reduction, [&](auto combine) { return scatter_elements<T>(spec, places, combine); });
    });
  }
  return prepared;
}

bool supports_scatter_elements(const NodeSpec& spec) {
  const std::string reduction = spec.node().attr("reduction", "none");
  return is_movable(spec.in_type(0)) && is_index_type(spec.in_type(1)) && spec.in_type(2) == spec.in_type(0) &&
         (reduction == "none" || (is_numeric(spec.in_type(0)) && is_reduction(reduction)));
}

// ---- OneHot

// y = values[1] at the positions that the indices name along the axis, values[0] elsewhere. Indices outside the axis
// name no position.
Prepared prepare_one_hot(const NodeSpec& spec) {
  const AxisView y(spec.out_shape(), spec.node().attr("axis", -1));
  const int64_t depth = y.size, count = spec.in_size(0);
  const size_t bytes = size_of(spec.out_type());
  Prepared prepared;
  prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename Index>(Index) -> std::function<void(const Launch&)> {
    return [=, fill = StridedCopy({{spec.out_size(), 0, 1}}, bytes)](const Launch& launch) {
      fill.run(launch.inputs[2], launch.outputs[0]);
      for (int64_t l = 0; l < count; ++l) {
        const double index = static_cast<double>(launch.in<Index>(0)[l]);
        if (!(index >= -static_cast<double>(depth) && index < static_cast<double>(depth))) continue;
        const int64_t hot = static_cast<int64_t>(index) + (index < 0 ? depth : 0);
        std::memcpy(launch.out<char>() + (y.line(l) + hot * y.inner) * static_cast<int64_t>(bytes),
                    launch.in<char>(2) + bytes, bytes);
      }
    };
  });
  return prepared;
}

bool supports_one_hot(const NodeSpec& spec) {
  return is_numeric(spec.in_type(0)) && is_movable(spec.in_type(2)) && spec.in_size(2) == 2 && spec.is_constant(1);
}

// ---- NonZero, Compress: their sizes depend on contents, which must be known when the plan is built

Prepared prepare_non_zero(const NodeSpec& spec) {
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
  Prepared prepared;
  prepared.run = [coordinates = std::move(coordinates)](const Launch& launch) {
    if (!coordinates.empty()) std::memcpy(launch.outputs[0], coordinates.data(), coordinates.size() * sizeof(int64_t));
  };
  return prepared;
}

Prepared prepare_compress(const NodeSpec& spec) {
  const bool flat = !spec.node().has_attr("axis");
  const AxisView x(flat ? Shape{spec.in_size(0)} : spec.in_shape(0), flat ? 0 : spec.node().attr("axis", 0));
  const Tensor& condition = spec.constant(1);
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < condition.size() && i < x.size; ++i) {
    if (condition.at(i) != 0) taken.push_back(i);
  }
  const int64_t row = x.inner * static_cast<int64_t>(size_of(spec.in_type(0)));
  const int64_t count = static_cast<int64_t>(taken.size());
  if (spec.out_size() != x.outer * count * x.inner) {
    fail(spec.node().label(), ": ", count, " places hold, but its output is ", to_string(spec.out_shape()));
  }
  Prepared prepared;
  prepared.run = [=](const Launch& launch) {
    for (int64_t i = 0; i < x.outer * count; ++i) {
      std::memcpy(launch.out<char>() + i * row,
                  launch.in<char>(0) + (i / count * x.size + taken[static_cast<size_t>(i % count)]) * row,
                  static_cast<size_t>(row));
    }
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> gather_scatter_element_kernels() {
  return {
      {"GatherElements", supports_gather_elements, prepare_gather_elements, "", "", InputCheck::kChecks},
      {"ScatterElements", supports_scatter_elements, prepare_scatter_elements, "", "", InputCheck::kChecks},
      {"OneHot", supports_one_hot, prepare_one_hot},
      {"NonZero", [](const NodeSpec& spec) { return spec.is_constant(0); }, prepare_non_zero},
      {"Compress", [](const NodeSpec& spec) { return is_movable(spec.in_type(0)) && spec.is_constant(1); },
       prepare_compress},
  };
}

}  // namespace onnx_train::cpu
