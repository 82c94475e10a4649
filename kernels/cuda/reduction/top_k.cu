// TopK (kernels/geometry/indexing/scans.h). A small k selects one element after the other, each as the best of those
// after the previous one. A large k sorts all lines together: stably by elements, then by line. SortRows.
#include "kernels/cuda/reduction/leader.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/sort.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// The offset in the outputs of element j of a line.
struct LeaderPlaces {
  int64_t inner, k;
  __device__ int64_t at(int64_t line, int64_t j) const { return (line / inner * k + j) * inner + line % inner; }
};

// ---- One after the other

template <int kRowThreads, typename T>
__global__ void select_leaders(AxisView view, LeaderPlaces places, LeaderOrder order, const T* __restrict__ x,
                               T* values, int64_t* indices) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (row >= view.lines()) return;
  const T* const line = x + view.line(row);
  Leader<T> previous{T{}, -1};
  for (int64_t j = 0; j < places.k; ++j) {
    Leader<T> best{T{}, -1};
    for (int64_t i = Threads::first(); i < view.size; i += kRowThreads) {
      const Leader<T> candidate{line[i * view.inner], i};
      if (j == 0 || order(previous, candidate)) best = order.best(best, candidate);
    }
    best = Threads::merge(best, [=](const Leader<T>& a, const Leader<T>& b) { return order.best(a, b); });
    if (Threads::first() == 0) {
      if (values) values[places.at(row, j)] = best.value;
      if (indices) indices[places.at(row, j)] = best.index;
    }
    previous = best;
  }
}

template <typename T>
void enqueue_selection(const Launch& launch, const Leaders& top) {
  enqueue_lines<T>(
      launch, "select_leaders", top.x, [](auto threads) { return select_leaders<threads(), T>; }, top.x,
      LeaderPlaces{top.x.inner, top.k}, LeaderOrder{top.largest, false}, launch.in<T>(0), launch.out<T>(0),
      launch.out<int64_t>(1));
}

// ---- By sorting

// A key that grows with x. Equal numbers have equal keys, and so have all NaNs, which are the largest.
template <typename T>
__device__ uint64_t sort_key(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
    if (x != x) return static_cast<Bits>(~Bits{0});
    const T zero_is_positive = x + T{0};
    Bits bits;
    memcpy(&bits, &zero_is_positive, sizeof(T));
    return static_cast<Bits>(bits & kSign ? ~bits : bits | kSign);
  } else if constexpr (std::is_signed_v<T>) {
    using Bits = std::make_unsigned_t<T>;
    return static_cast<Bits>(static_cast<Bits>(x) ^ Bits(Bits{1} << (8 * sizeof(T) - 1)));
  } else {
    return x;
  }
}

template <typename T>
__global__ void make_keys(int64_t n, AxisView view, bool largest, const T* x, uint64_t* keys) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t line = i / view.size;
  const uint64_t key = sort_key(x[view.line(line) + (i - line * view.size) * view.inner]);
  keys[i] = largest ? ~key : key;
}

__global__ void make_line_keys(int64_t n, int64_t size, const int64_t* order, uint64_t* keys, int64_t* places) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  keys[i] = static_cast<uint64_t>(order[i] / size);
  places[i] = order[i];
}

template <typename T>
__global__ void write_leaders(int64_t n, AxisView view, LeaderPlaces places, const int64_t* order, const T* x,
                              T* values, int64_t* indices) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t line = i / places.k, j = i - line * places.k;
  const int64_t index = order[line * view.size + j] - line * view.size;
  if (values) values[places.at(line, j)] = x[view.line(line) + index * view.inner];
  if (indices) indices[places.at(line, j)] = index;
}

// The two sorts and their workspace: keys and places of the second sort, and the sorts' own workspace.
struct LineSort {
  Leaders top;
  int64_t n;
  Sort by_element, by_line;

  LineSort(const Leaders& leaders, size_t element_bytes)
      : top(leaders),
        n(top.x.lines() * top.x.size),
        by_element(n, 8 * static_cast<int>(element_bytes)),
        by_line(n, bits_below(top.x.lines())) {}
  size_t workspace() const { return static_cast<size_t>(3 * n) * sizeof(int64_t) + by_element.workspace(); }

  template <typename T>
  void run(const Launch& launch) const {
    auto* const keys = launch.scratch<uint64_t>();
    uint64_t* const line_keys = keys + n;
    auto* const places = reinterpret_cast<int64_t*>(keys + 2 * n);
    void* const rest = keys + 3 * n;
    enqueue_each(launch, "make_keys", make_keys<T>, n, top.x, top.largest, launch.in<T>(0), keys);
    const int64_t* order = by_element.run(launch, keys, rest).places;
    if (top.x.lines() > 1) {
      enqueue_each(launch, "make_line_keys", make_line_keys, n, top.x.size, order, line_keys, places);
      order = by_line.run(launch, line_keys, rest, places).places;
    }
    const int64_t results = top.x.lines() * top.k;
    enqueue_each(launch, "write_leaders", write_leaders<T>, results, top.x, LeaderPlaces{top.x.inner, top.k}, order,
                 launch.in<T>(0), launch.out<T>(0), launch.out<int64_t>(1));
  }
};

Prepared prepare_top_k(const NodeSpec& spec) {
  constexpr int64_t kFew = 16, kShortLine = 64;
  const Leaders top = leaders_of(spec);
  if (top.x.lines() * top.k == 0) return {[](const Launch&) {}};
  Prepared prepared;
  if (top.k <= kFew || top.x.size <= kShortLine) {
    prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
      return [top](const Launch& launch) { enqueue_selection<T>(launch, top); };
    });
    return prepared;
  }
  const LineSort sort(top, size_of(spec.in_type(0)));
  prepared.workspace = sort.workspace();
  prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [sort](const Launch& launch) { sort.run<T>(launch); };
  });
  return prepared;
}

// ---- SortRows: by the last column, then stably by each one before it

__global__ void number_rows(int64_t n, int64_t* order) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) order[i] = i;
}

template <typename T>
__global__ void make_column_keys(int64_t n, int64_t size, int64_t column, const T* x, const int64_t* order,
                                 uint64_t* keys, int64_t* places) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  places[i] = order[i];
  keys[i] = sort_key(x[order[i] * size + column]);
}

__global__ void copy_order(int64_t n, const int64_t* from, int64_t* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) to[i] = from[i];
}

Prepared prepare_sort_rows(const NodeSpec& spec) {
  const int64_t rows = spec.in_shape(0)[0], size = spec.in_shape(0)[1];
  if (rows == 0) return {[](const Launch&) {}};
  const Sort sort(rows, 8 * static_cast<int>(size_of(spec.in_type(0))));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(2 * rows) * sizeof(int64_t) + sort.workspace();
  prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=](const Launch& launch) {
      auto* const keys = launch.scratch<uint64_t>();
      auto* const places = reinterpret_cast<int64_t*>(keys + rows);
      int64_t* const order = launch.out<int64_t>();
      enqueue_each(launch, "number_rows", number_rows, rows, order);
      for (int64_t column = size; column-- > 0;) {
        enqueue_each(launch, "make_column_keys", make_column_keys<T>, rows, size, column, launch.in<T>(0), order, keys,
                     places);
        const int64_t* const sorted = sort.run(launch, keys, places + rows, places).places;
        enqueue_each(launch, "copy_order", copy_order, rows, sorted, order);
      }
    };
  });
  return prepared;
}

}  // namespace

std::vector<Kernel> top_k_kernels() {
  return {
      {"TopK", supports_top_k, prepare_top_k},
      {"SortRows", supports_sort_rows, prepare_sort_rows, kDomain},
  };
}

}  // namespace onnx_train::cuda
