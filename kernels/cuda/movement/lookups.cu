// Gather from many tables at once, such as the embeddings of a recommendation model: up to kMostTables in two launches.
#include "kernels/geometry/indexing/lookups.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/movement/row_units.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/tensor_list.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/geometry/indexing/indexing.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

constexpr int kMostTables = 40;  // tables per launch, passed as kernel parameters
constexpr int64_t kNoPosition = std::numeric_limits<int64_t>::max();

struct Lookup {
  const void *table, *indices;
  void* y;
  int64_t size, first_block;  // units of y; first block
  int64_t rows, count;        // rows of the table; number of indices
  int64_t start;              // first index of the table among the launch's
  int32_t input;              // input that holds the indices
};

using Lookups = TensorList<Lookup, kMostTables>;
static_assert(sizeof(Lookups) <= 4096 - 256);  // kernel parameters have at most 4096 bytes

// Converts each table's indices to rows; invalid ones become 0, and wrongs[t] is the first invalid one. One block per
// table.
template <typename Index>
__global__ void find_rows(Lookups lookups, int64_t* rows, int64_t* wrongs) {
  const Lookup& lookup = lookups.all[blockIdx.x];
  int64_t first = kNoPosition;
  for (int64_t i = threadIdx.x; i < lookup.count; i += kThreads) {
    const auto index = static_cast<int64_t>(static_cast<const Index*>(lookup.indices)[i]);
    const bool is_valid = index >= -lookup.rows && index < lookup.rows;
    rows[lookup.start + i] = !is_valid ? 0 : index < 0 ? index + lookup.rows : index;
    if (!is_valid) first = Smallest()(first, i);
  }
  first = merge_block<kThreads>(first, Smallest());
  if (threadIdx.x == 0) wrongs[blockIdx.x] = first;
}

// Reports the first invalid index of the first table that has one.
template <typename Index>
__device__ void report_wrong(const Lookups& lookups, const int64_t* wrongs, Fault* fault, int32_t node) {
  for (int t = 0; t < lookups.count; ++t) {
    if (wrongs[t] == kNoPosition || fault->node != 0) continue;
    const Lookup& lookup = lookups.all[t];
    const Index value = static_cast<const Index*>(lookup.indices)[wrongs[t]];
    *fault = {node, lookup.input, wrongs[t], static_cast<int64_t>(value)};
  }
}

template <typename Index, typename From, typename To>
__global__ void copy_table_rows(Lookups lookups, Divider row, const int64_t* rows, const int64_t* wrongs, Fault* fault,
                                int32_t node) {
  if (blockIdx.x == 0 && threadIdx.x == 0) report_wrong<Index>(lookups, wrongs, fault, node);
  int64_t begin = 0;
  const Lookup& lookup = lookups.of_block(&begin);
  const int64_t end = Smallest()(begin + kOfBlock, lookup.size);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const int64_t p = row.quotient(i), unit = i - p * row.divisor();
    copy_unit(static_cast<const From*>(lookup.table)[rows[lookup.start + p] * row.divisor() + unit],
              static_cast<To*>(lookup.y) + i);
  }
}

template <typename Index, typename From, typename To>
void run_lookups(const Launch& launch, const std::vector<TableLookup>& all, int64_t row) {
  int64_t* const wrongs = launch.scratch<int64_t>();
  int64_t* const rows = wrongs + kMostTables;
  for (size_t first = 0; first < all.size(); first += kMostTables) {
    Lookups lookups = {};
    int64_t start = 0;
    for (size_t t = first; t < std::min(all.size(), first + kMostTables); ++t) {
      const TableLookup& lookup = all[t];
      lookups.add({launch.inputs[lookup.table], launch.inputs[lookup.indices], launch.outputs[lookup.output],
                   lookup.count * row, 0, lookup.rows, lookup.count, start, lookup.indices});
      start += lookup.count;
    }
    enqueue(launch, "find_rows", find_rows<Index>, static_cast<unsigned>(lookups.count), kThreads, 0, lookups, rows,
            wrongs);
    enqueue(launch, "copy_table_rows", copy_table_rows<Index, From, To>, static_cast<unsigned>(lookups.blocks),
            kThreads, 0, lookups, Divider(row), rows, wrongs, launch.fault, launch.node);
  }
}

Prepared prepare_lookups(const NodeSpec& spec) {
  TableLookups lookups = table_lookups(spec);
  std::erase_if(lookups.all, [&](const TableLookup& lookup) { return lookup.count * lookups.row == 0; });
  if (lookups.all.empty()) return {[](const Launch&) {}};
  const TableLookup& one = lookups.all.front();
  const DType from = spec.in_type(one.table), to = spec.out_type(one.output);
  const int64_t bytes = lookups.row * static_cast<int64_t>(size_of(from));
  Prepared prepared;
  const auto prepare_as = [&]<typename From, typename To>(From, To) {
    const int64_t row = bytes / static_cast<int64_t>(sizeof(From));
    const auto run =
        spec.in_type(one.indices) == DType::kInt64 ? run_lookups<int64_t, From, To> : run_lookups<int32_t, From, To>;
    prepared.run = [run, row, all = lookups.all](const Launch& launch) { run(launch, all, row); };
  };
  if (from == to) {
    dispatch_unit(bytes, [&]<typename T>(T unit) { prepare_as(unit, unit); });
  } else if (to == DType::kBFloat16) {
    dispatch_rounded_unit<BFloat16>(bytes, prepare_as);
  } else {
    dispatch_rounded_unit<__half>(bytes, prepare_as);
  }
  int64_t most = 0, count = 0;  // numbers of indices in a launch
  for (size_t t = 0; t < lookups.all.size(); ++t) {
    if (t % kMostTables == 0) count = 0;
    most = std::max(most, count += lookups.all[t].count);
  }
  prepared.workspace = static_cast<size_t>(kMostTables + most) * sizeof(int64_t);
  prepared.explain = lookups.explain();
  return prepared;
}

bool supports_lookups(const NodeSpec& spec) {
  const TableLookups lookups = table_lookups(spec);
  if (lookups.all.empty()) return false;
  const TableLookup& one = lookups.all.front();
  const DType from = spec.in_type(one.table), to = spec.out_type(one.output);
  return is_movable(from) && is_index_type(spec.in_type(one.indices)) &&
         (from == to || (from == DType::kFloat && is_half(to)));
}

}  // namespace

std::vector<Kernel> lookup_kernels() {
  return {{"Gathers", supports_lookups, prepare_lookups, kDomain, "", InputCheck::kChecks}};
}

}  // namespace onnx_train::cuda
