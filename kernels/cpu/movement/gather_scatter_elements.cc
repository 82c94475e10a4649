// Operators that read or write single elements: GatherElements, ScatterElements, OneHot, Compress.
#include <cstring>
#include <functional>

#include "kernels/cpu/movement/indices.h"
#include "kernels/cpu/movement/scatter_rows.h"
#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/scans.h"

namespace onnx_train::cpu {
namespace {

// ---- GatherElements, ScatterElements

// Calls f(offset in the indices, offset in the data) for all indices, which are already checked.
template <typename F>
void for_each_element(const ElementLines& e, const int64_t* indices, F&& f) {
  static_assert(ElementLines::kMostAxes <= kMaxAxes);
  parallel_for(e.count == 0 ? 0 : e.num_lines, kElementGrain / 4 / (e.length + 1) + 1, [&](int64_t begin, int64_t end) {
    StridedIndex cursor(e.lines.data(), static_cast<int>(e.lines.size()), begin);
    for (int64_t l = begin; l < end; ++l, cursor.next()) {
      for (int64_t i = 0; i < e.length; ++i) {
        const int64_t place = cursor.from() + i * e.index_stride;
        f(place, cursor.to() + indices[place] * e.data_stride);
      }
    }
  });
}

Prepared prepare_gather_elements(const NodeSpec& spec) {
  const ElementLines places = gather_element_lines(spec);
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(places.count) * sizeof(int64_t);
  prepared.explain = explain_index(places.limit);
  prepared.run = dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [places, type = spec.in_type(1)](const Launch& launch) {
      int64_t* indices = launch.scratch<int64_t>();
      if (!read_indices(launch, 1, type, places.count, places.limit, indices)) return;
      const T* in = launch.in<T>(0);
      T* out = launch.out<T>();
      for_each_element(places, indices, [&](int64_t to, int64_t from) { out[to] = in[from]; });
    };
  });
  return prepared;
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
    for_each_element(places, indices, [&](int64_t from, int64_t to) { out[to] = combine(out[to], updates[from]); });
  };
}

Prepared prepare_scatter_elements(const NodeSpec& spec) {
  const ElementLines places = scatter_element_lines(spec);
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

// ---- OneHot

Prepared prepare_one_hot(const NodeSpec& spec) {
  const AxisView y = one_hot_axis(spec);
  const int64_t depth = y.size, count = spec.in_size(0);
  const size_t bytes = size_of(spec.out_type());
  Prepared prepared;
  prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename Index>(Index) -> std::function<void(const Launch&)> {
    return [=, fill = StridedCopy({{spec.out_size(), 0, 1}}, bytes)](const Launch& launch) {
      fill.run(launch.inputs[2], launch.outputs[0]);
      for (int64_t l = 0; l < count; ++l) {
        const int64_t hot = hot_position(launch.in<Index>(0)[l], depth);
        if (hot < 0) continue;
        std::memcpy(launch.out<char>() + (y.line(l) + hot * y.inner) * static_cast<int64_t>(bytes),
                    launch.in<char>(2) + bytes, bytes);
      }
    };
  });
  return prepared;
}

// ---- Compress

Prepared prepare_compress(const NodeSpec& spec) {
  const auto [x, taken] = kept_places(spec);
  const int64_t row = x.inner * static_cast<int64_t>(size_of(spec.in_type(0)));
  const int64_t count = static_cast<int64_t>(taken.size());
  Prepared prepared;
  prepared.run = [x = x, taken = taken, row, count](const Launch& launch) {
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
      {"Compress", supports_compress, prepare_compress},
  };
}

}  // namespace onnx_train::cpu
