// The kernels of all reductions. Elements are stored as S, results as Y.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/reduction/plan.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/cuda/support/wide.h"
#include "kernels/geometry/reductions.h"

namespace onnx_train::cuda {

inline constexpr int kRows = kThreads / kColumns;

// Folds elements first, first + step, ... below last of the output whose elements start at x.
template <typename Op, typename S>
__device__ typename Op::Acc fold(const Indexing<1>& elements, const S* x, int64_t first, int64_t last, int64_t step) {
  typename Op::Acc acc = Op::start();
  for (int64_t r = first; r < last; r += step) {
    int64_t offset[1] = {};
    elements.add_offsets(r, offset);
    acc = Op::add(acc, widened(x[offset[0]]));
  }
  return acc;
}

// The elements of a block's piece, which row y of the grid selects.
struct Piece {
  int64_t first, last;
  __device__ Piece(int64_t count, int64_t piece) : first(blockIdx.y * piece), last(first + piece) {
    if (last > count) last = count;
  }
};

// One output per warp, for rows that would leave most threads of a block without an element.
template <typename Op, typename S, typename Y>
__global__ void reduce_short_rows(int64_t num_outputs, Indexing<2> outputs, Indexing<1> elements, int64_t count,
                                  const S* __restrict__ x, Y* y) {
  using Threads = RowThreads<gpu::kWarpSize>;
  const int64_t output = Threads::row();
  if (output >= num_outputs) return;
  int64_t offsets[2] = {};
  outputs.add_offsets(output, offsets);
  auto acc = fold<Op>(elements, x + offsets[0], Threads::first(), count, Threads::kCount);
  acc = Threads::merge(acc, [](const auto& a, const auto& b) { return Op::merge(a, b); });
  if (Threads::first() == 0) y[offsets[1]] = math::convert<Y>(Op::finish(acc, count));
}

// One output per block.
template <typename Op, typename S, typename Y>
__global__ void reduce_rows(Indexing<2> outputs, Indexing<1> elements, int64_t count, int64_t piece_size,
                            const S* __restrict__ x, Y* y, typename Op::Acc* partials) {
  using Acc = typename Op::Acc;
  int64_t offsets[2] = {};
  outputs.add_offsets(blockIdx.x, offsets);
  const Piece piece(count, piece_size);
  Acc acc = fold<Op>(elements, x + offsets[0], piece.first + threadIdx.x, piece.last, kThreads);
  acc = merge_block<kThreads>(acc, [](const Acc& a, const Acc& b) { return Op::merge(a, b); });
  if (threadIdx.x != 0) return;
  if (gridDim.y > 1) {
    partials[int64_t{blockIdx.x} * gridDim.y + blockIdx.y] = acc;
  } else {
    y[offsets[1]] = math::convert<Y>(Op::finish(acc, count));
  }
}

// kColumns outputs per block; each of kRows rows of threads folds every kRows-th element.
template <typename Op, typename S, typename Y>
__global__ void reduce_columns(int64_t num_outputs, Indexing<2> outputs, Indexing<1> elements, int64_t count,
                               int64_t piece_size, const S* __restrict__ x, Y* y, typename Op::Acc* partials) {
  using Acc = typename Op::Acc;
  GPU_SHARED(scratch, Acc[kRows][kColumns]);
  const int64_t output = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  int64_t offsets[2] = {};
  Acc acc = Op::start();
  if (output < num_outputs) {
    outputs.add_offsets(output, offsets);
    const Piece piece(count, piece_size);
    acc = fold<Op>(elements, x + offsets[0], piece.first + threadIdx.y, piece.last, kRows);
  }
  scratch[threadIdx.y][threadIdx.x] = acc;
  __syncthreads();
  if (threadIdx.y != 0 || output >= num_outputs) return;
  for (int row = 1; row < kRows; ++row) acc = Op::merge(acc, scratch[row][threadIdx.x]);
  if (gridDim.y > 1) {
    partials[output * gridDim.y + blockIdx.y] = acc;
  } else {
    y[offsets[1]] = math::convert<Y>(Op::finish(acc, count));
  }
}

// One output per thread, for outputs of few elements.
template <typename Op, typename S, typename Y>
__global__ void reduce_few(int64_t num_outputs, Indexing<2> outputs, Indexing<1> elements, int64_t count,
                           const S* __restrict__ x, Y* y) {
  const int64_t output = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (output >= num_outputs) return;
  int64_t offsets[2] = {};
  outputs.add_offsets(output, offsets);
  y[offsets[1]] = math::convert<Y>(Op::finish(fold<Op>(elements, x + offsets[0], 0, count, 1), count));
}

template <typename Op, typename Y>
__global__ void finish_pieces(int64_t num_outputs, Indexing<2> outputs, int64_t pieces, int64_t count,
                              const typename Op::Acc* partials, Y* y) {
  const int64_t output = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (output >= num_outputs) return;
  int64_t offsets[2] = {};
  outputs.add_offsets(output, offsets);
  auto acc = partials[output * pieces];
  for (int64_t p = 1; p < pieces; ++p) acc = Op::merge(acc, partials[output * pieces + p]);
  y[offsets[1]] = math::convert<Y>(Op::finish(acc, count));
}

template <typename Op, typename S, typename Y = S>
Prepared prepare_reduction(const ReductionPlan& plan) {
  using Acc = typename Op::Acc;
  constexpr int64_t kFew = 8, kShort = 4 * kThreads;
  const int64_t outputs = plan.outputs, count = plan.count, piece = plan.piece;
  if (outputs == 0) return {[](const Launch&) {}};
  const Indexing<2> kept(plan.kept);
  const Indexing<1> reduced(plan.reduced);
  const auto few = [=](const Launch& launch) {
    enqueue_each(launch, "reduce_few", reduce_few<Op, S, Y>, outputs, kept, reduced, count, launch.in<S>(0),
                 launch.out<Y>());
  };
  if (count <= kFew || outputs > 0x7fffffff) return {few};
  const auto pieces = static_cast<unsigned>(plan.pieces);
  const auto blocks = static_cast<unsigned>(plan.columns ? (outputs + kColumns - 1) / kColumns : outputs);
  std::function<void(const Launch&)> first = [=](const Launch& launch) {
    enqueue(launch, "reduce_rows", reduce_rows<Op, S, Y>, dim3(static_cast<unsigned>(outputs), pieces), kThreads, 0,
            kept, reduced, count, piece, launch.in<S>(0), launch.out<Y>(), launch.scratch<Acc>());
  };
  if constexpr (std::is_same_v<Computed<S>, float>) {  // other types are rare: one kernel serves both directions
    if (plan.columns) {
      first = [=](const Launch& launch) {
        enqueue(launch, "reduce_columns", reduce_columns<Op, S, Y>, dim3(blocks, pieces), dim3(kColumns, kRows), 0,
                outputs, kept, reduced, count, piece, launch.in<S>(0), launch.out<Y>(), launch.scratch<Acc>());
      };
    } else if (count <= kShort && outputs >= kThreads) {
      return {[=](const Launch& launch) {
        enqueue(launch, "reduce_short_rows", reduce_short_rows<Op, S, Y>, row_blocks<gpu::kWarpSize>(outputs), kThreads,
                0, outputs, kept, reduced, count, launch.in<S>(0), launch.out<Y>());
      }};
    }
  }
  if (pieces == 1) return {first};
  const auto both = [=](const Launch& launch) {
    first(launch);
    enqueue_each(launch, "finish_pieces", finish_pieces<Op, Y>, outputs, kept, int64_t{pieces}, count,
                 launch.scratch<Acc>(), launch.out<Y>());
  };
  return {both, static_cast<size_t>(plan.partials()) * sizeof(Acc)};
}

// The kernel of a Reduce node: Op<T, W> reduces Ts with accumulators of type W (kernels/math/reducers.h).
template <template <typename, typename> typename Op, typename T>
Prepared prepare_reduction_of(const NodeSpec& spec) {
  return prepare_reduction<Op<T, DeviceWide<T>>, T>(ReductionPlan(spec.in_shape(0), reduced_axes(spec)));
}

// Reductions of numbers, and of numbers and bools.
template <template <typename, typename> typename Op>
Prepared prepare_numbers(const NodeSpec& spec) {
  return dispatch_numeric(spec.in_type(0), [&]<typename T>(T) { return prepare_reduction_of<Op, T>(spec); });
}
template <template <typename, typename> typename Op>
Prepared prepare_ordered(const NodeSpec& spec) {
  return dispatch_any(spec.in_type(0), [&]<typename T>(T) { return prepare_reduction_of<Op, T>(spec); });
}

}  // namespace onnx_train::cuda
