// Operators that read the rows or elements that indices select: Gather, GatherND, GatherElements, Compress.
#include "kernels/cuda/movement/copy_rows.h"
#include "kernels/cuda/movement/element_lines.h"
#include "kernels/cuda/movement/row_units.h"
#include "kernels/cuda/support/device_table.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/indices.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/scans.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// Copies one unit of a row per thread, unchanged or rounded to 16 bits. `part` is the distance between parts of `from`,
// in units.
template <typename From, typename To>
__global__ void copy_rows_kernel(int64_t n, Divider row, Divider count, int64_t part, const int64_t* __restrict__ rows,
                                 const From* __restrict__ from, To* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t at_row = row.quotient(i), outer = count.quotient(at_row);
  const int64_t unit = i - at_row * row.divisor(), p = at_row - outer * count.divisor();
  copy_unit(from[outer * part + rows[p] * row.divisor() + unit], to + i);
}

template <typename From, typename To = From>
void copy_rows_as(const Launch& launch, const RowCopy& copy, const int64_t* rows, const void* from, void* to) {
  const int64_t row = copy.row_bytes / static_cast<int64_t>(sizeof(From)), n = copy.outer * copy.count * row;
  enqueue_each(launch, "copy_rows", copy_rows_kernel<From, To>, n, Divider(row), Divider(copy.count), copy.size * row,
               rows, static_cast<const From*>(from), static_cast<To*>(to));
}

// Copies float32 rows rounded to S, for embedding lookups in mixed precision.
template <typename S>
void round_rows(const Launch& launch, const RowCopy& copy, const int64_t* rows, const void* from, void* to) {
  if (copy.outer * copy.count * copy.row_bytes == 0) return;
  dispatch_rounded_unit<S>(copy.row_bytes, [&]<typename From, typename To>(From, To) {
    copy_rows_as<From, To>(launch, copy, rows, from, to);
  });
}

// ---- Gather, GatherND

using CopyRows = void (*)(const Launch&, const RowCopy&, const int64_t* rows, const void* from, void* to);

Prepared prepare_gather_by(const NodeSpec& spec, CopyRows copy_rows_of) {
  const RowIndices rows = gather_rows(spec);
  const RowCopy copy{rows.x.outer, rows.x.size, rows.count,
                     rows.x.inner * static_cast<int64_t>(size_of(spec.in_type(0)))};
  const IndexInput indices{1, spec.in_type(1), rows.count};
  Prepared prepared;
  prepared.workspace = index_workspace(rows.count);
  prepared.explain = explain_index(rows.x.size);
  prepared.run = [copy, indices, copy_rows_of](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_indices(launch, indices, copy.size, places, places + indices.count);
    copy_rows_of(launch, copy, places, launch.inputs[0], launch.outputs[0]);
  };
  return prepared;
}

Prepared prepare_gather(const NodeSpec& spec) { return prepare_gather_by(spec, copy_rows); }

bool supports_rounded_gather(const NodeSpec& spec) {
  return supports_gather(spec) && spec.in_type() == DType::kFloat && is_half(spec.out_type());
}
Prepared prepare_rounded_gather(const NodeSpec& spec) {
  return prepare_gather_by(spec, spec.out_type() == DType::kBFloat16 ? round_rows<BFloat16> : round_rows<__half>);
}

Prepared prepare_gather_nd(const NodeSpec& spec) {
  const TuplePlaces tuples = gather_nd_places(spec);
  check_tuples(spec, tuples);
  const RowCopy copy{1, 0, tuples.count, tuples.row * static_cast<int64_t>(size_of(spec.in_type(0)))};
  Prepared prepared;
  prepared.workspace = index_workspace(tuples.count);
  prepared.explain = tuples.explain();
  prepared.run = [copy, tuples](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_tuples(launch, tuples, places, places + tuples.count);
    copy_rows(launch, copy, places, launch.inputs[0], launch.outputs[0]);
  };
  return prepared;
}

// ---- GatherElements

template <typename T>
__global__ void gather_elements(int64_t n, Indexing<1> lines, int64_t stride, const int64_t* __restrict__ places,
                                const T* __restrict__ x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[1] = {};
  lines.add_offsets(i, offset);
  y[i] = x[offset[0] + places[i] * stride];
}

Prepared prepare_gather_elements(const NodeSpec& spec) {
  const ElementLines lines = gather_element_lines(spec);
  const IndexInput indices{1, spec.in_type(1), lines.count};
  if (lines.count == 0) return {[](const Launch&) {}};
  const Indexing<1> offsets = line_offsets(lines);
  Prepared prepared;
  prepared.workspace = index_workspace(lines.count);
  prepared.explain = explain_index(lines.limit);
  prepared.run = dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=, limit = lines.limit, stride = lines.data_stride](const Launch& launch) {
      int64_t* const places = launch.scratch<int64_t>();
      read_indices(launch, indices, limit, places, places + indices.count);
      enqueue_each(launch, "gather_elements", gather_elements<T>, indices.count, offsets, stride, places,
                   launch.in<T>(0), launch.out<T>());
    };
  });
  return prepared;
}

// ---- Compress

Prepared prepare_compress(const NodeSpec& spec) {
  const KeptPlaces kept = kept_places(spec);
  const auto places =
      std::make_shared<const DeviceTable>(kept.places.data(), kept.places.size() * sizeof(kept.places[0]));
  const RowCopy copy{kept.x.outer, kept.x.size, static_cast<int64_t>(kept.places.size()),
                     kept.x.inner * static_cast<int64_t>(size_of(spec.in_type(0)))};
  return {[=](const Launch& launch) {
    copy_rows(launch, copy, places->data<int64_t>(), launch.inputs[0], launch.outputs[0]);
  }};
}

}  // namespace

void copy_rows(const Launch& launch, const RowCopy& copy, const int64_t* rows, const void* from, void* to) {
  if (copy.outer * copy.count * copy.row_bytes == 0) return;
  dispatch_unit(copy.row_bytes, [&]<typename T>(T) { copy_rows_as<T>(launch, copy, rows, from, to); });
}

std::vector<Kernel> gather_kernels() {
  return {
      {"Gather", supports_gather, prepare_gather, "", "", InputCheck::kChecks},
      {"Gather", supports_rounded_gather, prepare_rounded_gather, kDomain, "", InputCheck::kChecks},
      {"GatherND", supports_gather_nd, prepare_gather_nd, "", "", InputCheck::kChecks},
      {"GatherElements", supports_gather_elements, prepare_gather_elements, "", "", InputCheck::kChecks},
      {"Compress", supports_compress, prepare_compress},
  };
}

}  // namespace onnx_train::cuda
