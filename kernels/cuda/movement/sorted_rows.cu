#include "kernels/cuda/movement/sorted_rows.h"

#include "kernels/cuda/movement/combine_rows.h"
#include "kernels/cuda/movement/row_units.h"
#include "kernels/dispatch.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train::cuda {
namespace {

// Copies the last row of each key. One unit of a row per thread.
template <typename T>
__global__ void write_last(int64_t n, int64_t count, Divider row, const uint64_t* keys, const int64_t* places,
                           const Fault* guard, const T* from, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t p = row.quotient(i), unit = i - p * row.divisor();
  if (p + 1 < count && keys[p + 1] == keys[p]) return;
  to[static_cast<int64_t>(keys[p]) * row.divisor() + unit] = from[places[p] * row.divisor() + unit];
}

template <typename T>
void write_last_as(const Launch& launch, const RowScatter& rows, int64_t bytes, const Sort::Result& sorted,
                   const Fault* guard, const void* from, void* to) {
  const int64_t row = bytes / static_cast<int64_t>(sizeof(T)), n = rows.count * row;
  enqueue_each(launch, "write_last", write_last<T>, n, rows.count, Divider(row), sorted.keys, sorted.places, guard,
               static_cast<const T*>(from), static_cast<T*>(to));
}

void write_last_rows(const Launch& launch, const RowScatter& rows, int64_t bytes, const Sort::Result& sorted,
                     const Fault* guard, const void* from, void* to) {
  dispatch_unit(bytes, [&]<typename T>(T) { write_last_as<T>(launch, rows, bytes, sorted, guard, from, to); });
}

// places[p] of each key, as CoalescedRows describes it.
__global__ void write_places(int64_t count, const uint64_t* keys, const int64_t* order, const int64_t* size,
                             int64_t* places) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const bool repeats = i > 0 && keys[i - 1] == keys[i];
  places[order[i]] = static_cast<int64_t>(keys[i]) - (repeats ? *size : 0);
}

bool is_wide(const RowScatter& rows, DType dtype) { return dtype == DType::kFloat && rows.inner % 4 == 0; }

// Bytes of the partial results, a multiple of 16, because the sort's workspace follows them.
size_t partial_bytes(const RowScatter& rows, DType dtype) {
  const int64_t width = is_wide(rows, dtype) ? 4 : 1;
  const int64_t bytes = num_partials(rows, rows.inner / width) * width * static_cast<int64_t>(size_of(dtype));
  return align_up(static_cast<size_t>(bytes), 16);
}

}  // namespace

Reduction reduction_named(const std::string& name) {
  if (name == "add") return Reduction::kAdd;
  if (name == "mul") return Reduction::kMul;
  if (name == "max") return Reduction::kMax;
  return name == "min" ? Reduction::kMin : Reduction::kNone;
}

// ---- SortedRows

SortedRows::SortedRows(const RowScatter& rows, DType dtype, Reduction reduction, bool is_clear)
    : rows_(rows),
      dtype_(dtype),
      reduction_(reduction),
      is_clear_(is_clear),
      sort_(rows.count, bits_below(rows.size)) {}

size_t SortedRows::workspace() const {
  return (reduction_ == Reduction::kNone ? 0 : partial_bytes(rows_, dtype_)) + sort_.workspace();
}

void SortedRows::run(const Launch& launch, int64_t* keys, void* workspace, const void* from, void* to,
                     const Fault* guard) const {
  if (rows_.outer * rows_.count * rows_.inner == 0) return;
  const size_t partials = reduction_ == Reduction::kNone ? 0 : partial_bytes(rows_, dtype_);
  const Sort::Result sorted =
      sort_.run(launch, reinterpret_cast<uint64_t*>(keys), static_cast<char*>(workspace) + partials);
  if (reduction_ == Reduction::kNone) {
    write_last_rows(launch, rows_, rows_.inner * static_cast<int64_t>(size_of(dtype_)), sorted, guard, from, to);
    return;
  }
  if (reduction_ == Reduction::kAdd && is_wide(rows_, dtype_)) {
    using Rows = KeyedRows<float, 4, AddRows<float>>;
    const Rows wide{{}, static_cast<Rows::Pack*>(to), rows_.size * rows_.inner / 4, is_clear_};
    return enqueue_tiles(launch, rows_, sorted, wide, from, workspace, guard);
  }
  dispatch_numeric(dtype_, [&]<typename T>(T) {
    using Rows = KeyedRows<T, 1, AnyReduction<T>>;
    const Rows any{{reduction_}, static_cast<typename Rows::Pack*>(to), rows_.size * rows_.inner, is_clear_};
    enqueue_tiles(launch, rows_, sorted, any, from, workspace, guard);
  });
}

// ---- CoalescedRows

CoalescedRows::CoalescedRows(int64_t count, int64_t end, int64_t inner, DType dtype)
    : rows_{1, count, count, inner}, dtype_(dtype), sort_(count, bits_below(end)) {}

size_t CoalescedRows::workspace() const { return partial_bytes(rows_, dtype_) + sort_.workspace(); }

void CoalescedRows::run(const Launch& launch, int64_t* keys, void* workspace, const void* from, void* rows,
                        int64_t* places, const int64_t* size, const Fault* guard) const {
  if (rows_.count == 0) return;
  const Sort::Result sorted = sort_.run(launch, reinterpret_cast<uint64_t*>(keys),
                                        static_cast<char*>(workspace) + partial_bytes(rows_, dtype_));
  enqueue_each(launch, "write_places", write_places, rows_.count, sorted.keys, sorted.places, size, places);
  const auto enqueue_as = [&]<typename T, int kWidth>(T, std::integral_constant<int, kWidth>) {
    using Rows = FirstRows<T, kWidth, AddRows<T>>;
    enqueue_tiles(launch, rows_, sorted, Rows{{}, static_cast<typename Rows::Pack*>(rows)}, from, workspace, guard);
  };
  if (is_wide(rows_, dtype_)) return enqueue_as(float{}, std::integral_constant<int, 4>());
  dispatch_float(dtype_, [&](auto t) { enqueue_as(t, std::integral_constant<int, 1>()); });
}

}  // namespace onnx_train::cuda
