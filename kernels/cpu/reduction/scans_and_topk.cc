// Operators along one axis: CumSum, CumProd, ArgMax, ArgMin, TopK. A line consists of the elements along the axis with
// all other indices fixed.
#include <algorithm>
#include <functional>
#include <numeric>
#include <type_traits>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/scans.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

int64_t line_grain(const AxisView& x) { return kElementGrain / 4 / (x.size + 1) + 1; }

// The type in which cumulative operators compute: unsigned for integers, because they may wrap.
template <typename T>
using Cumulated = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

template <typename Combine>
Prepared prepare_cumulative(const NodeSpec& spec, int start, Combine combine) {
  const Cumulative scan = cumulative_of(spec);
  Prepared prepared;
  prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=](const Launch& launch) {
      const AxisView& x = scan.x;
      parallel_for(x.lines(), line_grain(x), [&](int64_t begin, int64_t end) {
        for (int64_t l = begin; l < end; ++l) {
          const T* in = launch.in<T>(0) + x.line(l);
          T* out = launch.out<T>() + x.line(l);
          Cumulated<T> so_far = static_cast<Cumulated<T>>(start);
          for (int64_t i = 0; i < x.size; ++i) {
            const int64_t at = (scan.reverse ? x.size - 1 - i : i) * x.inner;
            const Cumulated<T> next = combine(so_far, static_cast<Cumulated<T>>(in[at]));
            out[at] = static_cast<T>(scan.exclusive ? so_far : next);
            so_far = next;
          }
        }
      });
    };
  });
  return prepared;
}

Prepared prepare_cum_sum(const NodeSpec& spec) { return prepare_cumulative(spec, 0, std::plus<>{}); }
Prepared prepare_cum_prod(const NodeSpec& spec) { return prepare_cumulative(spec, 1, std::multiplies<>{}); }

// LinearScan (onnx_passes/functions/scans.cc).
Prepared prepare_linear_scan(const NodeSpec& spec) {
  const LinearScan scan = linear_scan_of(spec);
  return {dispatch_float(spec.out_type(), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [scan](const Launch& launch) {
      const AxisView& x = scan.x;
      parallel_for(x.lines(), line_grain(x), [&](int64_t begin, int64_t end) {
        for (int64_t l = begin; l < end; ++l) {
          double now = scan.first;
          for (int64_t i = 0; i < x.size; ++i) {
            const int64_t at = x.line(l) + (scan.reverse ? x.size - 1 - i : i) * x.inner;
            const double next = launch.in<T>(0)[at] * now + launch.in<T>(1)[at];
            launch.out<T>()[at] = static_cast<T>(now);
            now = next;
          }
        }
      });
    };
  })};
}

// The index of the first (or last) maximum or minimum of a line.
template <bool kLargest, typename S>
int64_t arg(const AxisView& x, const S* in, bool last) {
  using T = Computed<S>;
  int64_t best = 0;
  for (int64_t i = 1; i < x.size; ++i) {
    const T candidate = load(in[i * x.inner]), so_far = load(in[best * x.inner]);
    const bool wins = last ? !comes_before(kLargest, so_far, candidate) : comes_before(kLargest, candidate, so_far);
    if (wins) best = i;
  }
  return best;
}

// The same for a contiguous line: finds the best element of each block without branches, then its index in the best
// block. Lines with a NaN use the general loop.
template <bool kLargest, typename S>
int64_t arg_of_row(const AxisView& x, const S* in, bool last) {
  using T = Computed<S>;
  constexpr int64_t kBlock = 512;
  T best = load(in[0]);
  int64_t best_block = 0;
  int unordered = best != best;
  for (int64_t begin = 0; begin < x.size; begin += kBlock) {
    const int64_t n = std::min(kBlock, x.size - begin);
    const S* block = in + begin;
    T most = load(block[0]);
    if constexpr (kLargest) {
#pragma omp simd reduction(max : most) reduction(| : unordered)
      for (int64_t i = 0; i < n; ++i) {
        const T element = load(block[i]);
        most = element > most ? element : most;
        unordered |= element != element;
      }
    } else {
#pragma omp simd reduction(min : most) reduction(| : unordered)
      for (int64_t i = 0; i < n; ++i) {
        const T element = load(block[i]);
        most = element < most ? element : most;
        unordered |= element != element;
      }
    }
    if (comes_before(kLargest, most, best) || (last && most == best)) best = most, best_block = begin;
  }
  if (unordered) return arg<kLargest>(x, in, last);
  const S *first = in + best_block, *end = in + std::min(best_block + kBlock, x.size);
  const auto is_best = [best](S element) { return load(element) == best; };
  if (!last) return std::find_if(first, end, is_best) - in;
  while (!is_best(*--end)) continue;
  return end - in;
}

template <bool kLargest, typename S>
void run_arg(const AxisView& x, bool last, const S* in, int64_t* out) {
  parallel_for(x.lines(), line_grain(x), [&](int64_t begin, int64_t end) {
    if (x.inner > 1) {
      for (int64_t l = begin; l < end; ++l) out[l] = arg<kLargest>(x, in + x.line(l), last);
      return;
    }
    vectorized([&] {
      for (int64_t l = begin; l < end; ++l) out[l] = arg_of_row<kLargest>(x, in + x.line(l), last);
    });
  });
}

template <bool kLargest>
Prepared prepare_arg(const NodeSpec& spec) {
  const Extremum e = extremum_of(spec);
  const auto make = [&]<typename S>(S) -> std::function<void(const Launch&)> {
    return [e](const Launch& launch) { run_arg<kLargest>(e.x, e.last, launch.in<S>(0), launch.out<int64_t>()); };
  };
  Prepared prepared;
  prepared.run = spec.in_type(0) == DType::kBFloat16 ? make(BFloat16{}) : dispatch_numeric(spec.in_type(0), make);
  return prepared;
}

bool supports_narrow_arg(const NodeSpec& spec) {
  return spec.in_type(0) == DType::kBFloat16 && (spec.out_size() == 0 || spec.in_size(0) != 0) &&
         !spec.node().has_attr("classes");  // "classes" belongs to another device's plan (pad_classes.cc)
}

// The lines are divided among `workers`; each has scratch memory for the order of one line.
struct TopK {
  AxisView x;
  int64_t k;
  int64_t workers;
};

template <bool kLargest, typename T>
void top_k(const TopK& t, const T* in, T* values, int64_t* places, int64_t* orders) {
  const int64_t stride = t.x.inner, lines = t.x.lines();
  const auto pick = [&](int64_t l, int64_t* order) {
    const T* line = in + t.x.line(l);
    std::iota(order, order + t.x.size, 0);
    std::partial_sort(order, order + t.k, order + t.x.size, [&](int64_t i, int64_t j) {
      const T first = line[i * stride], second = line[j * stride];
      return comes_before(kLargest, first, second) || (!comes_before(kLargest, second, first) && i < j);
    });
    const int64_t out = l / stride * t.k * stride + l % stride;
    for (int64_t i = 0; i < t.k; ++i) {
      if (values) values[out + i * stride] = line[order[i] * stride];
      if (places) places[out + i * stride] = order[i];
    }
  };
  parallel_for(t.workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      for (int64_t l = lines * w / t.workers; l < lines * (w + 1) / t.workers; ++l) pick(l, orders + w * t.x.size);
    }
  });
}

Prepared prepare_top_k(const NodeSpec& spec) {
  const Leaders leaders = leaders_of(spec);
  const AxisView& x = leaders.x;
  Prepared prepared;
  const TopK top{x, leaders.k, std::clamp<int64_t>(x.lines() / line_grain(x), 1, spec.threads())};
  prepared.workspace = static_cast<size_t>(top.workers * x.size) * sizeof(int64_t);
  prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [top, largest = leaders.largest](const Launch& launch) {
      T* values = launch.out<T>(0);
      int64_t *places = launch.out<int64_t>(1), *orders = launch.scratch<int64_t>();
      largest ? top_k<true>(top, launch.in<T>(0), values, places, orders)
              : top_k<false>(top, launch.in<T>(0), values, places, orders);
    };
  });
  return prepared;
}

// Rows are compared by their first elements that differ; equal rows keep their order.
Prepared prepare_sort_rows(const NodeSpec& spec) {
  const int64_t rows = spec.in_shape(0)[0], size = spec.in_shape(0)[1];
  return {dispatch_numeric(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=](const Launch& launch) {
      int64_t* const order = launch.out<int64_t>();
      const T* const x = launch.in<T>(0);
      std::iota(order, order + rows, 0);
      std::sort(order, order + rows, [&](int64_t i, int64_t j) {
        for (int64_t k = 0; k < size; ++k) {
          const T first = x[i * size + k], second = x[j * size + k];
          if (comes_before(false, first, second)) return true;
          if (comes_before(false, second, first)) return false;
        }
        return i < j;
      });
    };
  })};
}

}  // namespace

std::vector<Kernel> scan_and_topk_kernels() {
  return {
      {"CumSum", supports_cumulative, prepare_cum_sum},
      {"CumProd", supports_cumulative, prepare_cum_prod},
      {"LinearScan", supports_linear_scan, prepare_linear_scan, kDomain},
      {"ArgMax", supports_extremum, prepare_arg<true>},
      {"ArgMin", supports_extremum, prepare_arg<false>},
      {"TopK", supports_top_k, prepare_top_k},
      {"SortRows", supports_sort_rows, prepare_sort_rows, kDomain},
      {"ArgMax", supports_narrow_arg, prepare_arg<true>, kDomain},
      {"ArgMin", supports_narrow_arg, prepare_arg<false>, kDomain},
  };
}

}  // namespace onnx_train::cpu
