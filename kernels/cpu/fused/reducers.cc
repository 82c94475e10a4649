#include "kernels/cpu/fused/reducers.h"

#include <string>
#include <unordered_map>

#include "kernels/cpu/reduction/reduce.h"
#include "kernels/reductions.h"

namespace onnx_train::cpu {
namespace {

template <typename Op, typename T>
struct Erased {
  using Acc = typename Op::Acc;
  static Acc* acc(void* p) { return static_cast<Acc*>(p); }
  static const Acc* acc(const void* p) { return static_cast<const Acc*>(p); }

  static void start(int64_t n, void* accumulators) { std::fill_n(acc(accumulators), n, Op::start()); }
  static void add(int64_t n, const void* x, void* accumulators) {
    vectorized([&] { fold_rows<Op>(static_cast<const T*>(x), 1, n, n, acc(accumulators)); });
  }
  static void add_row(int64_t n, const void* x, void* accumulator) {
    Acc& a = *acc(accumulator);
    a = Op::merge(a, reduce_line<Op>(static_cast<const T*>(x), n));
  }
  static void merge(int64_t n, const void* more, void* accumulators) {
    for (int64_t j = 0; j < n; ++j) acc(accumulators)[j] = Op::merge(acc(accumulators)[j], acc(more)[j]);
  }
  static void finish(int64_t n, const void* accumulators, int64_t count, void* y) {
    for (int64_t j = 0; j < n; ++j) static_cast<T*>(y)[j] = Op::finish(acc(accumulators)[j], count);
  }
  static void row(int64_t n, const void* x, void* y) {
    *static_cast<T*>(y) = Op::finish(reduce_line<Op>(static_cast<const T*>(x), n), n);
  }
};

template <typename Op, typename T>
const Reducer* reducer() {
  using E = Erased<Op, T>;
  static constexpr Reducer kReducer = {
      sizeof(T), sizeof(typename Op::Acc), E::start, E::add, E::add_row, E::merge, E::finish, E::row};
  return &kReducer;
}

template <template <typename, typename...> typename Op>
const Reducer* of_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat: return reducer<Op<float>, float>();
    case DType::kDouble: return reducer<Op<double>, double>();
    case DType::kInt64: return reducer<Op<int64_t>, int64_t>();
    case DType::kInt32: return reducer<Op<int32_t>, int32_t>();
    default: return nullptr;
  }
}

// The sink that keeps the reductions that fusion regions may hold.
struct ReducerSink {
  std::unordered_map<std::string, const Reducer* (*)(DType)> rows;

  template <template <typename, typename...> typename Op, typename Types, typename InRegions>
  void add(const char* op, Types, InRegions) {
    if constexpr (InRegions::value) rows.emplace(op, of_type<Op>);
  }
};

}  // namespace

const Reducer* find_reducer(const Node& node) {
  static const ReducerSink sink = [] {
    ReducerSink all;
    for_each_sum(all);
    for_each_norm(all);
    for_each_extremum(all);
    return all;
  }();
  const auto found = sink.rows.find(node.op());
  return found == sink.rows.end() ? nullptr : found->second(node.input(0)->dtype());
}

}  // namespace onnx_train::cpu
