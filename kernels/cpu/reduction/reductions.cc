#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/reduction/reduce.h"
#include "kernels/cpu/reduction/reducers.h"
#include "kernels/dispatch.h"

namespace onnx_train::cpu {

ReductionLayout::ReductionLayout(const Shape& shape, const std::vector<bool>& is_reduced) {
  struct Merged {
    int64_t size, stride;
    bool reduced;
  };
  std::vector<Merged> axes;  // innermost first
  int64_t stride = 1, outputs = 1;
  for (size_t k = shape.size(); k-- > 0;) {
    (is_reduced[k] ? count : outputs) *= shape[k];
    if (shape[k] != 1) {
      const bool merges = !axes.empty() && axes.back().reduced == is_reduced[k];
      if (merges) axes.back().size *= shape[k];
      if (!merges) axes.push_back({shape[k], stride, is_reduced[k]});
    }
    stride *= shape[k];
  }
  if (outputs == 0) {
    tasks = 0;
    return;
  }
  constexpr int64_t kEnoughTasks = 32, kPieces = 64;
  size_t next = 0;
  lanes = !axes.empty() && axes[0].reduced;
  if (lanes) {
    rows = axes[0].size;
    width = rows < kLineLanes ? 1 : kLineLanes;
    segment = kSegment;
    next = 1;
  } else {
    if (!axes.empty()) columns = axes[next++].size;
    width = std::min(columns, kMaxWidth);
    blocks = (columns + width - 1) / width;
    if (next < axes.size()) {
      rows = axes[next].size;
      row_stride = axes[next++].stride;
    }
    segment = std::max<int64_t>(kSegment / width, 1);
  }
  int64_t to = columns;
  for (; next < axes.size(); ++next) {
    const Merged& a = axes[next];
    if (a.reduced) {
      reduced.insert(reduced.begin(), {a.size, a.stride, 0});
    } else {
      kept.insert(kept.begin(), {a.size, a.stride, to});
      to *= a.size;
    }
  }
  tasks = outputs / columns * blocks;
  segments_per_run = (rows + segment - 1) / segment;
  segments = count == 0 ? 0 : segments_per_run * (count / rows);
  if (tasks < kEnoughTasks) pieces = std::clamp<int64_t>(std::min(segments, kPieces / tasks), 1, kPieces);
}

namespace {

// log Σ exp(x), accumulated as the maximum so far and Σ exp(x - maximum).
template <typename T>
struct LogSumExpOf {
  struct Acc {
    double largest, sum;
  };
  static constexpr double kNone = -std::numeric_limits<double>::infinity();
  static Acc start() { return {kNone, 0}; }
  static Acc add(Acc a, T x) { return merge(a, {static_cast<double>(x), 1}); }
  static Acc merge(Acc a, Acc b) {
    if (b.largest == kNone) return a;
    if (b.largest <= a.largest) return {a.largest, a.sum + b.sum * std::exp(b.largest - a.largest)};
    return {b.largest, b.sum + a.sum * std::exp(a.largest - b.largest)};
  }
  static T finish(Acc a, int64_t) {
    return static_cast<T>(std::isinf(a.largest) ? a.largest : a.largest + std::log(a.sum));
  }
};

// The axes that a Reduce* node reduces.
std::vector<bool> reduced_axes(const NodeSpec& spec) {
  const int64_t rank = static_cast<int64_t>(spec.in_shape(0).size());
  std::vector<int64_t> axes;
  if (spec.is_constant(1)) axes = spec.constant(1).to_ints();
  const bool all = axes.empty() && spec.node().attr("noop_with_empty_axes", 0) == 0;
  std::vector<bool> reduced(static_cast<size_t>(rank), all);
  for (int64_t axis : axes) reduced[static_cast<size_t>(normalize_axis(axis, rank))] = true;
  return reduced;
}

template <template <typename> typename Op, typename T>
Prepared prepare_as(const NodeSpec& spec) {
  using Acc = typename Op<T>::Acc;
  const ReductionLayout layout(spec.in_shape(0), reduced_axes(spec));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(layout.num_partials()) * sizeof(Acc);
  prepared.run = [layout](const Launch& launch) {
    reduce<Op<T>>(layout, launch.in<T>(0), launch.out<T>(), launch.scratch<Acc>());
  };
  return prepared;
}

template <template <typename> typename Op>
Prepared prepare(const NodeSpec& spec) {
  return dispatch_numeric(spec.in_type(0), [&]<typename T>(T) { return prepare_as<Op, T>(spec); });
}

template <template <typename> typename Op>
Prepared prepare_extremum(const NodeSpec& spec) {
  return dispatch_any(spec.in_type(0), [&]<typename T>(T) { return prepare_as<Op, T>(spec); });
}

bool axes_known(const NodeSpec& spec) { return !spec.has_input(1) || spec.is_constant(1); }
bool numbers(const NodeSpec& spec) { return axes_known(spec) && is_numeric(spec.in_type(0)); }
bool ordered(const NodeSpec& spec) { return numbers(spec) || (axes_known(spec) && spec.in_type(0) == DType::kBool); }

}  // namespace

std::vector<Kernel> reduction_kernels() {
  return {
      {"ReduceSum", numbers, prepare<SumOf>},
      {"ReduceMean", numbers, prepare<MeanOf>},
      {"ReduceMax", ordered, prepare_extremum<MaximumOf>},
      {"ReduceMin", ordered, prepare_extremum<MinimumOf>},
      {"ReduceProd", numbers, prepare<ProductOf>},
      {"ReduceL1", numbers, prepare<AbsoluteSumOf>},
      {"ReduceL2", numbers, prepare<NormOf>},
      {"ReduceLogSum", numbers, prepare<LogOfSum>},
      {"ReduceLogSumExp", numbers, prepare<LogSumExpOf>},
      {"ReduceSumSquare", numbers, prepare<SquareSumOf>},
  };
}

}  // namespace onnx_train::cpu
