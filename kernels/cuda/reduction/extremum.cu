// ArgMax, ArgMin (kernels/geometry/indexing/scans.h) and Hardmax.
#include "kernels/cuda/reduction/leader.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/broadcast.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

template <int kRowThreads, bool kLargest, typename S>
__global__ void find_extremum(AxisView view, int64_t size, bool last, const S* x, int64_t* y) {
  using Threads = RowThreads<kRowThreads>;
  using T = Computed<S>;
  if (Threads::row() >= view.lines()) return;
  const LeaderOrder order{kLargest, last};
  Leader<T> best{T{}, -1};
  // A thread's indices ascend, so that values alone decide between its elements.
  for_each_in_row<kRowThreads>(x, view.line(Threads::row()), size, view.inner, [&](int64_t i, S stored) {
    const T value = widened(stored);
    const bool is_better =
        last ? !comes_before(kLargest, best.value, value) : comes_before(kLargest, value, best.value);
    if (is_better || best.index < 0) best = {value, i};
  });
  best = Threads::merge(best, [=](const Leader<T>& a, const Leader<T>& b) { return order.best(a, b); });
  if (Threads::first() == 0) y[Threads::row()] = best.index;
}

template <bool kLargest>
Prepared prepare_extremum(const NodeSpec& spec) {
  if (spec.out_size() == 0) return {[](const Launch&) {}};
  const Extremum extremum = extremum_of(spec);
  const AxisView x = extremum.x;
  const int64_t size = extremum.size;
  const bool last = extremum.last;
  const auto prepare = [&]<typename S>(S) -> std::function<void(const Launch&)> {
    return [=](const Launch& launch) {
      enqueue_lines<Computed<S>>(
          launch, "find_extremum", x, [](auto threads) { return find_extremum<threads(), kLargest, S>; }, x, size, last,
          launch.in<S>(0), launch.out<int64_t>());
    };
  };
  const DType type = spec.in_type(0);
  return {is_half(type) ? dispatch_stored(type, prepare) : dispatch_numeric(type, prepare)};
}

bool supports_narrow(const NodeSpec& spec) {
  return is_half(spec.in_type(0)) && (spec.out_size() == 0 || spec.in_size(0) != 0);
}

// 1 at the first maximum of each line, 0 elsewhere. A NaN is a maximum only as the first element. y may be x.
template <int kRowThreads, typename T>
__global__ void hardmax(AxisView view, const Fault* guard, const T* x, T* y) {
  using Threads = RowThreads<kRowThreads>;
  if (stops(guard) || Threads::row() >= view.lines()) return;
  const int64_t line = view.line(Threads::row());
  const LeaderOrder order{true, false};
  Leader<T> best{T{}, -1};
  for (int64_t i = Threads::first(); i < view.size; i += kRowThreads) {
    const T value = x[line + i * view.inner];
    if (value == value || i == 0) best = order.best(best, {value, i});
  }
  best = Threads::merge(best, [=](const Leader<T>& a, const Leader<T>& b) { return order.best(a, b); });
  for (int64_t i = Threads::first(); i < view.size; i += kRowThreads) {
    y[line + i * view.inner] = i == best.index ? T{1} : T{0};
  }
}

Prepared prepare_hardmax(const NodeSpec& spec) {
  const AxisView view(spec.out_shape(), spec.node().attr("axis", -1));
  if (spec.out_size() == 0) return {[](const Launch&) {}};
  Prepared prepared;
  prepared.in_place = in_place_of_equal_inputs(spec, 1);
  prepared.run = dispatch_float(spec.in_type(), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [view](const Launch& launch) {
      enqueue_lines<T>(
          launch, "hardmax", view, [](auto threads) { return hardmax<threads(), T>; }, view, guard_of(launch, 1, 1),
          launch.in<T>(0), launch.out<T>());
    };
  });
  return prepared;
}

}  // namespace

std::vector<Kernel> extremum_kernels() {
  return {
      {"ArgMax", supports_extremum, prepare_extremum<true>},
      {"ArgMin", supports_extremum, prepare_extremum<false>},
      {"ArgMax", supports_narrow, prepare_extremum<true>, kDomain},
      {"ArgMin", supports_narrow, prepare_extremum<false>, kDomain},
      {"Hardmax", [](const NodeSpec& spec) { return is_float_or_double(spec.in_type()); }, prepare_hardmax},
  };
}

}  // namespace onnx_train::cuda
