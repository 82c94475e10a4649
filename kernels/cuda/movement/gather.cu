// Operators that read rows or elements which indices name: Gather, GatherND, GatherElements, Compress.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/movement/copy_rows.h"
#include "kernels/cuda/movement/element_lines.h"
#include "kernels/cuda/support/device_table.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/indices.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/scans.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// One unit of a row per thread. `part` is the distance of the parts of `from`, in units.
template <typename T>
__global__ void copy_rows_kernel(int64_t n, Divider row, Divider count, int64_t part, const int64_t* rows,
                                 const T* from, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t at_row = row.quotient(i), outer = count.quotient(at_row);
  const int64_t unit = i - at_row * row.divisor(), p = at_row - outer * count.divisor();
  to[i] = from[outer * part + rows[p] * row.divisor() + unit];
}

template <typename T>
void copy_rows_as(const Launch& launch, const RowCopy& copy, const int64_t* rows, const void* from, void* to) {
  const int64_t row = copy.row_bytes / static_cast<int64_t>(sizeof(T)), n = copy.outer * copy.count * row;
  enqueue(launch, "copy_rows", copy_rows_kernel<T>, blocks_for(n), kThreads, 0, n, Divider(row), Divider(copy.count),
          copy.size * row, rows, static_cast<const T*>(from), static_cast<T*>(to));
}

// ---- Gather, GatherND

Prepared prepare_gather(const NodeSpec& spec) {
  const RowIndices rows = gather_rows(spec);
  const RowCopy copy{rows.x.outer, rows.x.size, rows.count,
                     rows.x.inner * static_cast<int64_t>(size_of(spec.in_type(0)))};
  const IndexInput indices{1, spec.in_type(1), rows.count};
  Prepared prepared;
  prepared.workspace = index_workspace(rows.count);
  prepared.explain = explain_index(rows.x.size);
  prepared.run = [copy, indices](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_indices(launch, indices, copy.size, places, places + indices.count);
    copy_rows(launch, copy, places, launch.inputs[0], launch.outputs[0]);
  };
  return prepared;
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

// Of float32, rounded to 16 bits: the rows of an embedding that mixed precision looks up. `row` divides by the packs of
// a row.
template <int kCount, typename S>
__global__ void round_rows(int64_t n, Divider row, Divider count, int64_t part, const int64_t* rows, const float* from,
                           S* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t at_row = row.quotient(i), outer = count.quotient(at_row);
  const int64_t unit = i - at_row * row.divisor(), p = at_row - outer * count.divisor();
  const auto read = reinterpret_cast<const Pack<float, kCount>*>(from)[outer * part + rows[p] * row.divisor() + unit];
  Pack<S, kCount> rounded;
  for (int k = 0; k < kCount; ++k) rounded.at[k] = math::convert<S>(read.at[k]);
  reinterpret_cast<Pack<S, kCount>*>(to)[i] = rounded;
}

template <typename S>
Prepared prepare_rounded_gather(const NodeSpec& spec) {
  constexpr int kWidest = kVectorBytes / sizeof(float);
  const RowIndices rows = gather_rows(spec);
  const IndexInput indices{1, spec.in_type(1), rows.count};
  const int64_t packs = rows.x.inner % kWidest == 0 ? rows.x.inner / kWidest : rows.x.inner;
  const int64_t n = rows.x.outer * rows.count * packs, part = rows.x.size * packs;
  const auto kernel = packs == rows.x.inner ? round_rows<1, S> : round_rows<kWidest, S>;
  Prepared prepared;
  prepared.workspace = index_workspace(rows.count);
  prepared.explain = explain_index(rows.x.size);
  prepared.run = [=, size = rows.x.size](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    read_indices(launch, indices, size, places, places + indices.count);
    if (n == 0) return;
    enqueue(launch, "round_rows", kernel, blocks_for(n), kThreads, 0, n, Divider(packs), Divider(indices.count), part,
            places, launch.in<float>(0), launch.out<S>());
  };
  return prepared;
}

bool supports_rounded_gather(const NodeSpec& spec) {
  return supports_gather(spec) && spec.in_type() == DType::kFloat && is_half(spec.out_type());
}

Prepared prepare_gather_of_16_bits(const NodeSpec& spec) {
  return spec.out_type() == DType::kBFloat16 ? prepare_rounded_gather<BFloat16>(spec)
                                             : prepare_rounded_gather<__half>(spec);
}

// ---- GatherElements

template <typename T>
__global__ void gather_elements(int64_t n, Indexing<1> lines, int64_t stride, const int64_t* places, const T* x, T* y) {
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
      enqueue(launch, "gather_elements", gather_elements<T>, blocks_for(indices.count), kThreads, 0, indices.count,
              offsets, stride, places, launch.in<T>(0), launch.out<T>());
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
  if (copy.row_bytes % 16 == 0) return copy_rows_as<uint4>(launch, copy, rows, from, to);
  if (copy.row_bytes % 8 == 0) return copy_rows_as<uint64_t>(launch, copy, rows, from, to);
  if (copy.row_bytes % 4 == 0) return copy_rows_as<uint32_t>(launch, copy, rows, from, to);
  if (copy.row_bytes % 2 == 0) return copy_rows_as<uint16_t>(launch, copy, rows, from, to);
  copy_rows_as<uint8_t>(launch, copy, rows, from, to);
}

std::vector<Kernel> gather_kernels() {
  return {
      {"Gather", supports_gather, prepare_gather, "", "", InputCheck::kChecks},
      {"Gather", supports_rounded_gather, prepare_gather_of_16_bits, kDomain, "", InputCheck::kChecks},
      {"GatherND", supports_gather_nd, prepare_gather_nd, "", "", InputCheck::kChecks},
      {"GatherElements", supports_gather_elements, prepare_gather_elements, "", "", InputCheck::kChecks},
      {"Compress", supports_compress, prepare_compress},
  };
}

}  // namespace onnx_train::cuda
