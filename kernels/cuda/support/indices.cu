#include "kernels/cuda/support/indices.h"

#include <limits>

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/geometry/regions.h"

namespace onnx_train::cuda {
namespace {

constexpr int64_t kNoPosition = std::numeric_limits<int64_t>::max();
constexpr unsigned kCheckingThreads = 1024;
constexpr int64_t kPerBlock = int64_t{kCheckingThreads} * 8;

// Reports what the kernels of a node find in one of its inputs.
struct Reporter {
  Fault* fault;
  int32_t node;
  int32_t input;
  __device__ void report(int64_t position, int64_t value) const {
    if (fault->node == 0) *fault = {node, input, position, value};
  }
};

// A kind of indices:
//   int64_t at(int64_t i, int64_t* wrong) const   result i; stores the position of an invalid element to *wrong
//   int64_t value(int64_t position) const         the element that is reported

// Indices of one axis. If `size_at` is not null, it holds the axis' size, which then replaces the other numbers.
template <typename T>
struct AxisIndices {
  const T* indices;
  int64_t low, high, wraps;
  const int64_t* size_at;

  __device__ int64_t value(int64_t position) const { return static_cast<int64_t>(indices[position]); }
  __device__ int64_t at(int64_t i, int64_t* wrong) const {
    const int64_t index = value(i), first = size_at ? -*size_at : low, end = size_at ? *size_at : high;
    if (index >= first && index < end) return index < 0 ? index + (size_at ? *size_at : wraps) : index;
    *wrong = i;
    return 0;
  }
};

template <typename T>
struct StoredIndices {
  const T* numbers;
  int64_t stride, high;

  __device__ int64_t value(int64_t position) const { return image_number(numbers[position]); }
  __device__ int64_t at(int64_t i, int64_t* wrong) const {
    const int64_t index = value(i * stride);
    if (index >= 0 && index < high) return index;
    *wrong = i * stride;
    return 0;
  }
};

struct TupleIndices {
  const int64_t* indices;
  int64_t axes, rows_per_batch;
  Divider per_batch;
  int64_t sizes[kMaxRank];
  int64_t strides[kMaxRank];  // in rows

  __device__ int64_t value(int64_t position) const { return indices[position]; }
  __device__ int64_t at(int64_t i, int64_t* wrong) const {
    int64_t row = per_batch.quotient(i) * rows_per_batch;
    for (int64_t k = 0; k < axes; ++k) {
      const int64_t index = indices[i * axes + k];
      if (index < -sizes[k] || index >= sizes[k]) {
        *wrong = i * axes + k;
        return 0;
      }
      row += (index < 0 ? index + sizes[k] : index) * strides[k];
    }
    return row;
  }
};

// Computes all results. Reports the first invalid position if the grid is one block, else stores that of each block.
template <typename Indices>
__global__ void __launch_bounds__(kCheckingThreads)
    read_kernel(int64_t count, Indices indices, Reporter reporter, int64_t* results, int64_t* wrongs) {
  int64_t first = kNoPosition;
  const int64_t step = int64_t{gridDim.x} * kCheckingThreads;
  for (int64_t i = int64_t{blockIdx.x} * kCheckingThreads + threadIdx.x; i < count; i += step) {
    int64_t wrong = kNoPosition;
    const int64_t result = indices.at(i, &wrong);
    if (results) results[i] = result;
    first = Smallest()(first, wrong);
  }
  first = merge_block<kCheckingThreads>(first, Smallest());
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    wrongs[blockIdx.x] = first;
  } else if (first != kNoPosition) {
    reporter.report(first, indices.value(first));
  }
}

// Reports the first of the positions that the blocks have found. One block.
template <typename Indices>
__global__ void report_first(int64_t blocks, Indices indices, Reporter reporter, const int64_t* wrongs) {
  int64_t first = kNoPosition;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) first = Smallest()(first, wrongs[b]);
  first = merge_block<kThreads>(first, Smallest());
  if (threadIdx.x == 0 && first != kNoPosition) reporter.report(first, indices.value(first));
}

template <typename Indices>
void run(const Launch& launch, int input, int64_t count, const Indices& indices, int64_t* results, int64_t* scratch) {
  if (count == 0) return;
  const int64_t blocks = std::clamp<int64_t>((count + kPerBlock - 1) / kPerBlock, 1, kIndexScratch);
  const Reporter reporter{launch.fault, launch.node, input};
  enqueue(launch, "read_indices", read_kernel<Indices>, static_cast<unsigned>(blocks), kCheckingThreads, 0, count,
          indices, reporter, results, scratch);
  if (blocks == 1) return;
  enqueue(launch, "report_first", report_first<Indices>, 1, kThreads, 0, blocks, indices, reporter, scratch);
}

struct Range {
  int64_t low, high, wraps;
  const int64_t* size_at;
};

void run_range(const Launch& launch, const IndexInput& in, const Range& r, int64_t* results, int64_t* scratch) {
  const auto run_as = [&]<typename T>(T) {
    run(launch, in.input, in.count, AxisIndices<T>{launch.in<T>(in.input), r.low, r.high, r.wraps, r.size_at}, results,
        scratch);
  };
  in.type == DType::kInt64 ? run_as(int64_t{}) : run_as(int32_t{});
}

}  // namespace

void read_indices(const Launch& launch, const IndexInput& indices, int64_t size, int64_t* results, int64_t* scratch) {
  run_range(launch, indices, {-size, size, size, nullptr}, results, scratch);
}

void read_indices(const Launch& launch, const IndexInput& indices, const int64_t* size, int64_t* results,
                  int64_t* scratch) {
  run_range(launch, indices, {0, 0, 0, size}, results, scratch);
}

void read_numbers(const Launch& launch, const IndexInput& numbers, int64_t low, int64_t high, int64_t* results,
                  int64_t* scratch) {
  run_range(launch, numbers, {low, high, 0, nullptr}, results, scratch);
}

template <typename T>
void read_stored_numbers(const Launch& launch, const StoredNumbers& numbers, int64_t high, int64_t* results,
                         int64_t* scratch) {
  run(launch, numbers.input, numbers.count, StoredIndices<T>{launch.in<T>(numbers.input), numbers.stride, high},
      results, scratch);
}

template void read_stored_numbers<float>(const Launch&, const StoredNumbers&, int64_t, int64_t*, int64_t*);
template void read_stored_numbers<double>(const Launch&, const StoredNumbers&, int64_t, int64_t*, int64_t*);

void read_tuples(const Launch& launch, const TuplePlaces& places, int64_t* results, int64_t* scratch) {
  const int64_t row = std::max<int64_t>(places.row, 1);
  TupleIndices tuples = {};
  tuples.indices = launch.in<int64_t>(1);
  tuples.axes = static_cast<int64_t>(places.sizes.size());
  tuples.rows_per_batch = places.batch_stride / row;
  tuples.per_batch = Divider(std::max<int64_t>(places.per_batch, 1));
  for (size_t k = 0; k < places.sizes.size(); ++k) {
    tuples.sizes[k] = places.sizes[k];
    tuples.strides[k] = places.strides[k] / row;
  }
  run(launch, 1, places.count, tuples, results, scratch);
}

void check_tuples(const NodeSpec& spec, const TuplePlaces& places) {
  if (places.sizes.size() <= kMaxRank) return;
  fail(spec.node().label(), ": indices of ", places.sizes.size(), " axes; this device supports up to ", kMaxRank);
}

}  // namespace onnx_train::cuda
