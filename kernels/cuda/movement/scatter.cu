// Operators that write rows or elements that indices select: ScatterND, ScatterElements, the gradients of Gather.
#include "kernels/cuda/movement/combine_rows.h"
#include "kernels/cuda/movement/element_lines.h"
#include "kernels/cuda/movement/sorted_rows.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/indices.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/device.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

void copy_first_input(const Launch& launch, size_t bytes) {
  if (launch.inputs[0] != launch.outputs[0]) launch.stream->copy({launch.outputs[0], launch.inputs[0], bytes});
}

size_t bytes_of_input(const NodeSpec& spec) { return static_cast<size_t>(spec.in_size(0)) * size_of(spec.in_type(0)); }

Reduction reduction_of(const NodeSpec& spec) { return reduction_named(spec.node().attr("reduction", "none")); }

// ---- Gradients of Gather

Prepared prepare_gather_grad(const NodeSpec& spec) {
  const RowIndices indices = gather_grad_rows(spec);
  const SortedRows rows({indices.x.outer, indices.count, indices.x.size, indices.x.inner}, spec.out_type(),
                        Reduction::kAdd, true);
  const size_t bytes = static_cast<size_t>(spec.out_size()) * size_of(spec.out_type());
  const size_t keys = index_workspace(indices.count);
  Prepared prepared;
  prepared.workspace = keys + rows.workspace();
  prepared.explain = explain_index(indices.x.size);
  prepared.run = [=, input = IndexInput{1, spec.in_type(1), indices.count},
                  size = indices.x.size](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_indices(launch, input, size, places, places + input.count);
    set_bytes(launch, launch.outputs[0], 0, bytes);
    rows.run(launch, places, launch.scratch<char>() + keys, launch.inputs[0], launch.outputs[0], nullptr);
  };
  return prepared;
}

bool supports_gather_grad(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type(0)) && spec.out_type() == spec.in_type(0) && is_index_type(spec.in_type(1));
}

Prepared prepare_add_gather_grad(const NodeSpec& spec) {
  const RowIndices indices = add_gather_grad_rows(spec);
  const SortedRows rows({1, indices.count, indices.x.size, indices.x.inner}, spec.out_type(), Reduction::kAdd);
  const size_t bytes = bytes_of_input(spec), keys = index_workspace(indices.count);
  Prepared prepared;
  prepared.workspace = keys + rows.workspace();
  prepared.explain = explain_index(indices.x.size);
  prepared.in_place = {{0, 0}};
  prepared.run = [=, input = IndexInput{2, spec.in_type(2), indices.count},
                  size = indices.x.size](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_indices(launch, input, size, places, places + input.count);
    copy_first_input(launch, bytes);
    rows.run(launch, places, launch.scratch<char>() + keys, launch.inputs[1], launch.outputs[0],
             guard_of(launch, 1, 1));
  };
  return prepared;
}

// ---- ScatterND

Prepared prepare_scatter_nd(const NodeSpec& spec) {
  const TuplePlaces tuples = scatter_nd_places(spec);
  check_tuples(spec, tuples);
  const int64_t size = spec.in_size(0) / std::max<int64_t>(tuples.row, 1);
  const SortedRows rows({1, tuples.count, size, tuples.row}, spec.in_type(0), reduction_of(spec));
  const size_t bytes = bytes_of_input(spec), keys = index_workspace(tuples.count);
  Prepared prepared;
  prepared.workspace = keys + rows.workspace();
  prepared.explain = tuples.explain();
  prepared.in_place = {{0, 0}};
  prepared.run = [=](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_tuples(launch, tuples, places, places + tuples.count);
    copy_first_input(launch, bytes);
    rows.run(launch, places, launch.scratch<char>() + keys, launch.inputs[2], launch.outputs[0],
             guard_of(launch, 1, 1));
  };
  return prepared;
}

// ---- ScatterElements: one thread per short line, in order; for other lines, sorts the places of all elements

// The offsets of a line in the indices and in the data, and of its elements.
struct Lines {
  int64_t count, length, index_stride, data_stride;
};

template <typename T, typename Op>
__global__ void scatter_lines(Lines lines, Indexing<2> offsets, Op op, const int64_t* places, const Fault* guard,
                              const T* updates, T* y) {
  const int64_t line = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (line >= lines.count || stops(guard)) return;
  int64_t at[2] = {};
  offsets.add_offsets(line, at);
  for (int64_t i = 0; i < lines.length; ++i) {
    const int64_t from = at[0] + i * lines.index_stride;
    T& to = y[at[1] + places[from] * lines.data_stride];
    to = op.combine(to, updates[from]);
  }
}

template <typename T>
struct Replace {
  __device__ T combine(T, T update) const { return update; }
};

// Converts positions on the axis to offsets in the data.
__global__ void find_offsets(int64_t n, Indexing<1> lines, int64_t stride, int64_t* places) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[1] = {};
  lines.add_offsets(i, offset);
  places[i] = offset[0] + places[i] * stride;
}

using RunScatter = std::function<void(const Launch&, int64_t* places, const Fault* guard)>;

RunScatter scatter_by_lines(const NodeSpec& spec, const ElementLines& e) {
  std::vector<IndexedAxis<2>> axes;
  for (const CopyAxis& axis : e.lines) axes.push_back({axis.size, {axis.from, axis.to}});
  const Lines lines{e.num_lines, e.length, e.index_stride, e.data_stride};
  const auto make = [&]<typename T, typename Op>(T, Op op) -> RunScatter {
    return [=, offsets = Indexing<2>(axes)](const Launch& launch, int64_t* places, const Fault* guard) {
      enqueue(launch, "scatter_lines", scatter_lines<T, Op>, blocks_for(lines.count), kThreads, 0, lines, offsets, op,
              places, guard, launch.in<T>(2), launch.out<T>());
    };
  };
  const Reduction reduction = reduction_of(spec);
  if (reduction == Reduction::kNone) {
    return dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T t) { return make(t, Replace<T>()); });
  }
  return dispatch_numeric(spec.in_type(0), [&]<typename T>(T t) { return make(t, AnyReduction<T>{reduction}); });
}

RunScatter scatter_by_sorting(const ElementLines& e, const SortedRows& rows, size_t keys) {
  return [=, offsets = line_offsets(e), count = e.count, stride = e.data_stride](const Launch& launch, int64_t* places,
                                                                                 const Fault* guard) {
    enqueue_each(launch, "find_offsets", find_offsets, count, offsets, stride, places);
    rows.run(launch, places, launch.scratch<char>() + keys, launch.inputs[2], launch.outputs[0], guard);
  };
}

Prepared prepare_scatter_elements(const NodeSpec& spec) {
  constexpr int64_t kShortLine = 256, kManyLines = 1 << 16;
  const ElementLines lines = scatter_element_lines(spec);
  const size_t bytes = bytes_of_input(spec), keys = index_workspace(lines.count);
  Prepared prepared;
  prepared.workspace = keys;
  prepared.explain = explain_index(lines.limit);
  prepared.in_place = {{0, 0}};
  RunScatter scatter = [](const Launch&, int64_t*, const Fault*) {};
  if (lines.count > 0 && (lines.length <= kShortLine || lines.num_lines >= kManyLines)) {
    scatter = scatter_by_lines(spec, lines);
  } else if (lines.count > 0) {
    const SortedRows rows({1, lines.count, spec.in_size(0), 1}, spec.in_type(0), reduction_of(spec));
    prepared.workspace += rows.workspace();
    scatter = scatter_by_sorting(lines, rows, keys);
  }
  prepared.run = [=, input = IndexInput{1, spec.in_type(1), lines.count}, limit = lines.limit](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_indices(launch, input, limit, places, places + input.count);
    copy_first_input(launch, bytes);
    scatter(launch, places, guard_of(launch, 1, 1));
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> scatter_kernels() {
  return {
      {"GatherGrad", supports_gather_grad, prepare_gather_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"AddGatherGrad", supports_add_gather_grad, prepare_add_gather_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"ScatterND", supports_scatter_nd, prepare_scatter_nd, "", "", InputCheck::kChecks},
      {"ScatterElements", supports_scatter_elements, prepare_scatter_elements, "", "", InputCheck::kChecks},
  };
}

}  // namespace onnx_train::cuda
