// Gather and its relatives. Indices are checked before anything is written.
#include <cstring>

#include "kernels/cpu/movement/indices.h"
#include "kernels/cpu/movement/scatter_rows.h"
#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/axis_view.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {
namespace {

// y[o, p, :] = x[o, indices[p], :]
Prepared prepare_gather(const NodeSpec& spec) {
  const auto [x, n] = gather_rows(spec);
  const int64_t row = x.inner * static_cast<int64_t>(size_of(spec.in_type(0)));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(n) * sizeof(int64_t);
  prepared.explain = explain_index(x.size);
  prepared.run = [x = x, n = n, row, type = spec.in_type(1)](const Launch& launch) {
    int64_t* indices = launch.scratch<int64_t>();
    if (!read_indices(launch, 1, type, n, x.size, indices)) return;
    const auto copy = [&](auto row_bytes) {
      parallel_for(x.outer * n, kElementGrain * 4 / std::max<int64_t>(row, 1) + 1, [&](int64_t i, int64_t end) {
        while (i < end) {
          const int64_t outer = i / n, first = i % n, last = std::min(n, first + end - i);
          const char* from = launch.in<char>(0) + outer * x.size * row_bytes;
          char* to = launch.out<char>() + outer * n * row_bytes;
          for (int64_t p = first; p < last; ++p)
            std::memcpy(to + p * row_bytes, from + indices[p] * row_bytes, static_cast<size_t>(row_bytes));
          i += last - first;
        }
      });
    };
    // Copies of single elements and short rows are fast because their length is known at compile time.
    if (row == 4) return copy(std::integral_constant<int64_t, 4>());
    if (row == 8) return copy(std::integral_constant<int64_t, 8>());
    if (row == 64) return copy(std::integral_constant<int64_t, 64>());
    copy(row);
  };
  return prepared;
}

// dx[o, indices[p], :] += dy[o, p, :]. Inputs dy, indices, shape; the body is in functions/indexing.cc.
Prepared prepare_gather_grad(const NodeSpec& spec) {
  const RowIndices indices = gather_grad_rows(spec);
  const AxisView x = indices.x;
  const int64_t n = indices.count;
  const int64_t all = spec.out_size();
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(n) * sizeof(int64_t);
  prepared.explain = explain_index(x.size);
  const auto make = [&]<typename From, typename T>(From, T) -> std::function<void(const Launch&)> {
    return [x, n, all, type = spec.in_type(1)](const Launch& launch) {
      int64_t* offsets = launch.scratch<int64_t>();
      if (!read_indices(launch, 1, type, n, x.size, offsets)) return;
      for (int64_t i = 0; i < n; ++i) offsets[i] *= x.inner;
      T* out = launch.out<T>();
      parallel_for(all, kElementGrain, [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, T{0}); });
      scatter_rows(RowScatter{x.outer, n, x.size * x.inner, x.inner}, offsets, launch.in<From>(0), out,
                   [](T a, From b) { return a + static_cast<T>(b); });
    };
  };
  prepared.run = spec.in_type(0) == DType::kBFloat16
                     ? make(BFloat16{}, float{})
                     : dispatch_float(spec.in_type(0), [&](auto t) { return make(t, t); });
  return prepared;
}

// y = sum, and y[indices[p], :] += dy[p, :]. Inputs sum, dy, indices.
Prepared prepare_add_gather_grad(const NodeSpec& spec) {
  const RowIndices indices = add_gather_grad_rows(spec);
  const AxisView x = indices.x;
  const int64_t n = indices.count;
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(n) * sizeof(int64_t);
  prepared.explain = explain_index(x.size);
  prepared.in_place = {{0, 0}};
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return
        [x, n, copy = StridedCopy({{spec.in_size(0), 1, 1}}, sizeof(T)), type = spec.in_type(2)](const Launch& launch) {
          int64_t* offsets = launch.scratch<int64_t>();
          if (!read_indices(launch, 2, type, n, x.size, offsets)) return;
          for (int64_t i = 0; i < n; ++i) offsets[i] *= x.inner;
          if (launch.inputs[0] != launch.outputs[0]) copy.run(launch.inputs[0], launch.outputs[0]);
          scatter_rows(RowScatter{1, n, 0, x.inner}, offsets, launch.in<T>(1), launch.out<T>(),
                       [](T a, T b) { return a + b; });
        };
  });
  return prepared;
}

// If dy is bfloat16 (kernels/lowering/storage/narrow_storage.cc), its sums are float32.
bool supports_gather_grad(const NodeSpec& spec) {
  return computes_in_one_type(spec, {0}, {}) && is_index_type(spec.in_type(1));
}

// ---- GatherND, ScatterND

// Computes the offset of each tuple's row in the data, in elements. Reports the first index that is out of range and
// returns false.
bool find_offsets(const TuplePlaces& places, const Launch& launch, int64_t* out) {
  const int64_t* indices = launch.in<int64_t>(1);
  const size_t n = places.sizes.size();
  for (int64_t t = 0; t < places.count; ++t) {
    int64_t offset = t / places.per_batch * places.batch_stride;
    for (size_t k = 0; k < n; ++k) {
      const int64_t index = indices[static_cast<size_t>(t) * n + k], size = places.sizes[k];
      if (index < -size || index >= size) {
        launch.report(1, t * static_cast<int64_t>(n) + static_cast<int64_t>(k), index);
        return false;
      }
      offset += (index < 0 ? index + size : index) * places.strides[k];
    }
    out[t] = offset;
  }
  return true;
}

Prepared prepare_gather_nd(const NodeSpec& spec) {
  const TuplePlaces places = gather_nd_places(spec);
  const int64_t bytes = static_cast<int64_t>(size_of(spec.in_type(0)));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(places.count) * sizeof(int64_t);
  prepared.explain = places.explain();
  prepared.run = [places, bytes](const Launch& launch) {
    int64_t* offsets = launch.scratch<int64_t>();
    if (!find_offsets(places, launch, offsets)) return;
    const int64_t row = places.row * bytes;
    parallel_for(places.count, kElementGrain * 4 / (row + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        std::memcpy(launch.out<char>() + t * row, launch.in<char>(0) + offsets[t] * bytes, static_cast<size_t>(row));
      }
    });
  };
  return prepared;
}

template <typename T, typename Combine>
std::function<void(const Launch&)> scatter_nd(const NodeSpec& spec, const TuplePlaces& places, Combine combine) {
  return [places, combine, copy = StridedCopy({{spec.in_size(0), 1, 1}}, sizeof(T))](const Launch& launch) {
    int64_t* offsets = launch.scratch<int64_t>();
    if (!find_offsets(places, launch, offsets)) return;
    if (launch.inputs[0] != launch.outputs[0]) copy.run(launch.inputs[0], launch.outputs[0]);
    scatter_rows(RowScatter{1, places.count, 0, places.row}, offsets, launch.in<T>(2), launch.out<T>(), combine);
  };
}

Prepared prepare_scatter_nd(const NodeSpec& spec) {
  const TuplePlaces places = scatter_nd_places(spec);
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(places.count) * sizeof(int64_t);
  prepared.explain = places.explain();
  prepared.in_place = {{0, 0}};
  const std::string reduction = spec.node().attr("reduction", "none");
  if (reduction == "none") {
    prepared.run = dispatch_size(size_of(spec.in_type(0)),
                                 [&]<typename T>(T) { return scatter_nd<T>(spec, places, [](T, T b) { return b; }); });
  } else {
    prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) {
      return with_reduction<T>(reduction, [&](auto combine) { return scatter_nd<T>(spec, places, combine); });
    });
  }
  return prepared;
}

}  // namespace

std::vector<Kernel> indexing_kernels() {
  return {
      {"Gather", supports_gather, prepare_gather, "", "", InputCheck::kChecks},
      {"GatherGrad", supports_gather_grad, prepare_gather_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"AddGatherGrad", supports_add_gather_grad, prepare_add_gather_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"GatherND", supports_gather_nd, prepare_gather_nd, "", "", InputCheck::kChecks},
      {"ScatterND", supports_scatter_nd, prepare_scatter_nd, "", "", InputCheck::kChecks},
  };
}

}  // namespace onnx_train::cpu
