// How a reduction traverses its input, and the loop that all reductions share.
//
// Axes are merged until kept and reduced ones alternate. The innermost loop runs over `width` accumulators: the kept
// columns or, if the innermost axis is reduced, lanes that are merged at the end. The elements of one output are cut
// into segments, and the segments into pieces, by sizes alone, so the order of summation does not depend on the number
// of threads.
//
// A ReductionLayout is immutable; any thread may run tasks and pieces of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"

namespace onnx_train::cpu {

struct ReductionLayout {
  std::vector<CopyAxis> kept;     // kept axes except the innermost one; `to` traverses the output
  std::vector<CopyAxis> reduced;  // reduced axes except the rows of a run
  bool lanes = false;             // the innermost axis is reduced
  int64_t columns = 1;            // size of the innermost axis if it is kept
  int64_t rows = 1;               // rows of a run: the innermost axis's elements if it is reduced
  int64_t row_stride = 1;
  int64_t count = 1;  // input elements per output

  // A task computes one output or a block of neighbouring outputs.
  int64_t tasks = 1;
  int64_t blocks = 1;   // tasks that share a row of columns
  int64_t width = 1;    // accumulators of a task
  int64_t segment = 1;  // rows in a segment
  int64_t segments_per_run = 1;
  int64_t segments = 1;
  int64_t pieces = 1;  // groups of segments; each has its own accumulators

  ReductionLayout(const Shape& shape, const std::vector<bool>& is_reduced);

  // Accumulators kept between the two phases if there are several pieces.
  int64_t num_partials() const { return pieces > 1 ? tasks * pieces * width : 0; }
};

// The operation with the same start, add and merge as Op; operations that share it share their loops.
template <typename Op>
struct FoldOf {
  using type = Op;
};

constexpr int64_t kMaxWidth = 256;
constexpr int64_t kLineLanes = 32;   // accumulators of a reduced innermost axis
constexpr int64_t kSegment = 16384;  // elements

// acc[j] = add(acc[j], x[r, j]) for all rows, in order. Processes four rows at a time, because accumulators are wider
// than x. Called within `vectorized`.
template <typename Op, typename T>
void fold_rows(const T* __restrict x, int64_t rows, int64_t stride, int64_t width, typename Op::Acc* __restrict acc) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* __restrict x0 = x + r * stride;
    for (int64_t j = 0; j < width; ++j) {
      const auto half = Op::add(Op::add(acc[j], x0[j]), x0[stride + j]);
      acc[j] = Op::add(Op::add(half, x0[2 * stride + j]), x0[3 * stride + j]);
    }
  }
  for (; r < rows; ++r) {
    for (int64_t j = 0; j < width; ++j) acc[j] = Op::add(acc[j], x[r * stride + j]);
  }
}

// Folds one segment of `rows` rows. With several lanes, element i goes to lane i modulo the number of lanes.
template <typename Op, typename T>
void fold_segment(const ReductionLayout& layout, const T* x, int64_t rows, int64_t width, typename Op::Acc* acc) {
  if (layout.lanes && width == 1) {
    for (int64_t r = 0; r < rows; ++r) acc[0] = Op::add(acc[0], x[r]);
  } else if (layout.lanes) {
    vectorized([&] { fold_rows<Op>(x, rows / width, width, width, acc); });
    vectorized([&] { fold_rows<Op>(x + rows / width * width, 1, width, rows % width, acc); });
  } else {
    vectorized([&] { fold_rows<Op>(x, rows, layout.row_stride, width, acc); });
  }
}

// Merges the lanes pairwise into lanes[0].
template <typename Op>
void merge_lanes(int64_t width, typename Op::Acc* lanes) {
  for (int64_t half = width / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lanes[j] = Op::merge(lanes[j], lanes[j + half]);
  }
}

// The reduction of n contiguous elements, in the order in which a reduction of the innermost axis adds them if the axis
// is no longer than a segment.
template <typename Op, typename T>
typename Op::Acc reduce_line(const T* x, int64_t n) {
  typename Op::Acc result = Op::start();
  if (n < kLineLanes) {
    for (int64_t i = 0; i < n; ++i) result = Op::add(result, x[i]);
    return result;
  }
  vectorized([&result, x, n] {
    typename Op::Acc lanes[kLineLanes];
    for (int64_t j = 0; j < kLineLanes; ++j) lanes[j] = Op::start();
    const int64_t whole = n / kLineLanes * kLineLanes;
    for (int64_t i = 0; i < whole; i += kLineLanes) {
      for (int64_t j = 0; j < kLineLanes; ++j) lanes[j] = Op::add(lanes[j], x[i + j]);
    }
    for (int64_t i = whole; i < n; ++i) lanes[i - whole] = Op::add(lanes[i - whole], x[i]);
    merge_lanes<Op>(kLineLanes, lanes);
    result = lanes[0];
  });
  return result;
}

// The input and output offsets of a task; next() advances to the next task.
class Task {
 public:
  Task(const ReductionLayout& layout, int64_t task)
      : layout_(layout),
        place_(layout.kept.data(), static_cast<int>(layout.kept.size()), task / layout.blocks),
        block_(task % layout.blocks) {}
  int64_t from() const { return place_.from() + block_ * layout_.width; }
  int64_t to() const { return place_.to() + block_ * layout_.width; }
  // Accumulators in use: the last block of columns may have fewer.
  int64_t width() const {
    return layout_.lanes ? layout_.width : std::min(layout_.width, layout_.columns - block_ * layout_.width);
  }
  void next() {
    if (++block_ < layout_.blocks) return;
    block_ = 0;
    place_.next();
  }

 private:
  const ReductionLayout& layout_;
  StridedIndex place_;
  int64_t block_;
};

// Accumulates piece `piece` of a task; Op is its own FoldOf.
template <typename Op, typename T>
void reduce_piece(const ReductionLayout& layout, const T* x, const Task& task, int64_t piece, typename Op::Acc* acc) {
  std::fill(acc, acc + layout.width, Op::start());
  x += task.from();
  if (layout.segments == 1) return fold_segment<Op>(layout, x, layout.rows, task.width(), acc);
  const int64_t begin = layout.segments * piece / layout.pieces, end = layout.segments * (piece + 1) / layout.pieces;
  if (begin >= end) return;
  StridedIndex run(layout.reduced.data(), static_cast<int>(layout.reduced.size()), begin / layout.segments_per_run);
  int64_t in_run = begin % layout.segments_per_run;
  for (int64_t s = begin; s < end; ++s) {
    const int64_t row = in_run * layout.segment, rows = std::min(layout.segment, layout.rows - row);
    fold_segment<Op>(layout, x + run.from() + row * layout.row_stride, rows, task.width(), acc);
    if (++in_run == layout.segments_per_run) {
      in_run = 0;
      run.next();
    }
  }
}

// Writes the outputs of a task from its accumulators.
template <typename Op, typename T>
void finish_task(const ReductionLayout& layout, const Task& task, typename Op::Acc* acc, T* y) {
  y += task.to();
  if (layout.lanes) {
    merge_lanes<Op>(layout.width, acc);
    y[0] = Op::finish(acc[0], layout.count);
    return;
  }
  for (int64_t j = 0; j < task.width(); ++j) y[j] = Op::finish(acc[j], layout.count);
}

// `partials` holds layout.num_partials() accumulators.
template <typename Op, typename T>
void reduce(const ReductionLayout& layout, const T* x, T* y, typename Op::Acc* partials) {
  using Acc = typename Op::Acc;
  using Fold = typename FoldOf<Op>::type;
  const int64_t work = layout.count * (layout.lanes ? 1 : layout.width) / layout.pieces;
  const int64_t grain = kElementGrain / (work + 1) + 1;
  if (layout.pieces == 1) {
    return parallel_for(layout.tasks, grain, [&](int64_t begin, int64_t end) {
      Acc acc[kMaxWidth];
      Task task(layout, begin);
      for (int64_t i = begin; i < end; ++i, task.next()) {
        reduce_piece<Fold>(layout, x, task, 0, acc);
        finish_task<Op>(layout, task, acc, y);
      }
    });
  }
  parallel_for(layout.tasks * layout.pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Task task(layout, i / layout.pieces);
      reduce_piece<Fold>(layout, x, task, i % layout.pieces, partials + i * layout.width);
    }
  });
  Task task(layout, 0);
  for (int64_t i = 0; i < layout.tasks; ++i, task.next()) {
    Acc* acc = partials + i * layout.pieces * layout.width;
    for (int64_t p = 1; p < layout.pieces; ++p) {
      for (int64_t j = 0; j < layout.width; ++j) acc[j] = Op::merge(acc[j], acc[p * layout.width + j]);
    }
    finish_task<Op>(layout, task, acc, y);
  }
}

}  // namespace onnx_train::cpu
