// One kernel that walks all steps of RNN, GRU and LSTM, or of their gradients, in float32. Each block of threads holds
// its rows of R in registers from the first step to the last, so that a step costs one barrier between blocks instead
// of the launches of a product and a cell's kernels.
//
// A block owns `units` hidden units of `tile` samples in one direction. In each phase of a step (cells.h) it
//   - waits until the blocks of its direction and tile have published the operand: h, say, of the step before,
//   - copies its samples' rows of the operand to shared memory and multiplies them by its rows of R,
//   - completes its elements and publishes their part of the next operand.
// Two buffers take turns as the operand: a block publishes only after all blocks have published before, and so have
// read what it overwrites. Blocks wait for each other, so the launch is cooperative: all of them run at once.
//
// A warp multiplies kWarpRows rows of R by kWarpSamples samples, and its lanes share k. The order of the sums is always
// the same, but not that of the library's product, so results differ from those of the walk step by step in their last
// bits.
#pragma once

#include <iterator>
#include <type_traits>

#include "kernels/cuda/recurrent/cells.h"
#include "kernels/cuda/recurrent/persistent_plan.h"

namespace onnx_train::cuda {

// Adds values of lanes that are kWidth apart, of which each lane keeps half.
template <int kWidth>
__device__ void add_halves(float (&v)[kLanes], int lane) {
  const bool is_upper = (lane & kWidth) != 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float kept = is_upper ? v[i + kWidth] : v[i], given = is_upper ? v[i] : v[i + kWidth];
    v[i] = kept + __shfl_xor_sync(gpu::kAllLanes, given, kWidth);
  }
}

// Lane i gets the sum over all lanes of v[i].
__device__ inline float transposed_sum(float (&v)[kLanes], int lane) {
  add_halves<16>(v, lane);
  add_halves<8>(v, lane);
  add_halves<4>(v, lane);
  add_halves<2>(v, lane);
  add_halves<1>(v, lane);
  return v[0];
}

template <typename Cell>
__device__ void finish_element(const Cell& cell, const CellElement& at, const typename Cell::Loaded& x) {
  if constexpr (!Cell::kForward) cell.finish(at, x);
}

template <typename Cell, int kVectors>
__global__ void __launch_bounds__(kWalkThreads, 1)
    persistent_walk(Cell cell, PersistentPlan plan, const float* r, float* exchange, int* counters) {
  constexpr int kPhases = static_cast<int>(std::size(Cell::kPhases));
  const int64_t n = cell.e.hidden, d = blockIdx.z;
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t first_unit = int64_t{blockIdx.x} * plan.units, first_sample = int64_t{blockIdx.y} * plan.tile;
  const int64_t left = cell.e.batch - first_sample;
  const int samples = left < plan.tile ? static_cast<int>(left) : plan.tile;
  GPU_DYNAMIC_SHARED(float4, staged);
  float* const partial = reinterpret_cast<float*>(staged + plan.pass * plan.row);

  // The warp's rows of R
  const bool is_second = kPhases == 2 && warp >= plan.tasks[0];  // whether they belong to phase 1
  const int task = is_second ? warp - plan.tasks[0] : warp;
  const int parts = is_second ? plan.parts[1] : plan.parts[0], part = task % parts, group = task / parts;
  const bool works = task < (is_second ? plan.tasks[1] : plan.tasks[0]);
  float weights[kWarpRows][kVectors][4];
  {
    constexpr GateRows kFirst = Cell::kPhases[0], kLast = Cell::kPhases[kPhases - 1];
    const int first_gate = is_second ? kLast.first_gate : kFirst.first_gate;
    const int64_t depth = Cell::kForward ? n : (is_second ? kLast.gates : kFirst.gates) * n;
    const float* const from = r + (d * cell.e.gates + first_gate) * n * n;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const int row = group * kWarpRows + i;
      const int64_t unit = first_unit + row % plan.units, gate = row / plan.units;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int64_t k = int64_t{(part * kVectors + v) * kLanes + lane} * 4 + c;
          const bool exists = works && unit < n && k < depth;
          weights[i][v][c] = !exists ? 0.0f : Cell::kForward ? from[(gate * n + unit) * n + k] : from[k * n + unit];
        }
      }
    }
  }

  // The thread's element in a pass
  const int own_unit = static_cast<int>(threadIdx.x) % plan.units;
  const int own_sample = static_cast<int>(threadIdx.x) / plan.units;
  const int64_t j = first_unit + own_unit;
  const auto has_element = [&](int first) { return own_sample < plan.pass && first + own_sample < samples && j < n; };
  const auto element = [&](int64_t t, int first) {
    return CellElement(cell, t, d, first_sample + first + own_sample, j);
  };

  int* const counter = counters + (d * plan.tiles + blockIdx.y) * kCounterStride;
  int published = 0;  // how many operands each block has published
  // The place of a sample in the operand that is published as number `number`.
  const auto operand = [&](int number, int sample) {
    return exchange + (((number & 1) * cell.e.directions + d) * cell.e.batch + first_sample + sample) * plan.pitch;
  };
  const auto publish = [&](int first, const auto& values) {
    float* const to = operand(published, first + own_sample) + j;
    constexpr int kValues = sizeof(values.values) / sizeof(float);
#pragma unroll
    for (int k = 0; k < kValues; ++k) to[k * n] = values.values[k];
  };
  const auto finish_publication = [&] {
    __syncthreads();
    if (threadIdx.x == 0) gpu::add_release(counter, 1);
    ++published;
  };
  const auto wait_for_operand = [&] {
    if (threadIdx.x == 0) {
      while (gpu::load_acquire(counter) < published * plan.unit_blocks) {
      }
    }
    __syncthreads();
  };

  // Multiplies the last operand of the samples from `first` on by the block's rows of R. The sums are in `partial`.
  const auto multiply = [&](auto phase, int first) {
    constexpr int kPhase = decltype(phase)::value;
    const int64_t depth = Cell::kForward ? n : Cell::kPhases[kPhase].gates * n;
    const int segments = plan.parts[kPhase] * kVectors;  // of kLanes float4s
#pragma unroll 4
    for (int i = warp; i < plan.pass * segments; i += kWalkWarps) {
      const int sample = i / segments, k = (i - sample * segments) * kLanes + lane;
      float4 values = {0, 0, 0, 0};
      if (first + sample < samples && 4 * k < depth)
        values = *gpu::vector_at<const float4>(operand(published - 1, first + sample) + 4 * k);
      staged[sample * plan.row + k] = values;
    }
    __syncthreads();
    if (works && is_second == (kPhase == 1)) {
      for (int chunk = 0; chunk * kWarpSamples < plan.pass && first + chunk * kWarpSamples < samples; ++chunk) {
        float sums[kLanes] = {};
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int s = 0; s < kWarpSamples; ++s) {
            const float4 x = staged[(chunk * kWarpSamples + s) * plan.row + (part * kVectors + v) * kLanes + lane];
#pragma unroll
            for (int i = 0; i < kWarpRows; ++i) {
              float& sum = sums[i * kWarpSamples + s];
              sum += weights[i][v][0] * x.x;
              sum += weights[i][v][1] * x.y;
              sum += weights[i][v][2] * x.z;
              sum += weights[i][v][3] * x.w;
            }
          }
        }
        partial[(chunk * kWalkWarps + warp) * kLanes + lane] = transposed_sum(sums, lane);
      }
    }
    __syncthreads();
  };
  // Adds the products of the thread's element.
  const auto add_product = [&](auto phase, auto& sums) {
    constexpr int kPhase = decltype(phase)::value;
    constexpr int kSums = Cell::kForward ? Cell::kPhases[kPhase].gates : 1;
    const float* const of_chunk = partial + own_sample / kWarpSamples * kWalkWarps * kLanes + own_sample % kWarpSamples;
    const int first_task = kPhase == 0 ? 0 : plan.tasks[0];
#pragma unroll
    for (int g = 0; g < kSums; ++g) {
      const int row = g * plan.units + own_unit;
      const int first = first_task + row / kWarpRows * plan.parts[kPhase];
      float sum = 0;
      for (int p = 0; p < plan.parts[kPhase]; ++p)
        sum += of_chunk[(first + p) * kLanes + row % kWarpRows * kWarpSamples];
      sums[g] += sum;
    }
  };

  const int64_t steps = cell.e.steps;
  const auto run_phase = [&](auto phase, int64_t t, bool is_end) {
    constexpr int kPhase = decltype(phase)::value;
    for (int first = 0; first < samples; first += plan.pass) {
      const bool exists = has_element(first);
      // Loads precede the wait, which hides their latency.
      typename Cell::Loaded x = {};
      if (exists) x = cell.template load<kPhase>(element(t, first));
      if (published > 0) {
        if (first == 0) wait_for_operand();
        multiply(phase, first);
        if (exists) add_product(phase, x.sums);
      }
      if (!exists) continue;
      if (is_end) {
        finish_element(cell, element(t, first), x);
      } else {
        publish(first, cell.template step<kPhase>(element(t, first), x));
      }
    }
    if (!is_end) finish_publication();
  };

  if constexpr (Cell::kForward) {
    for (int first = 0; first < samples; first += plan.pass) {
      if (has_element(first)) publish(first, cell.first_operand(element(cell.order.step(d, 0), first)));
    }
    finish_publication();
  }
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = cell.order.step(d, Cell::kForward ? i : steps - 1 - i);
    run_phase(std::integral_constant<int, 0>(), t, false);
    if constexpr (kPhases == 2) run_phase(std::integral_constant<int, 1>(), t, false);
  }
  // The gradient of the state before the first step
  if constexpr (!Cell::kForward) run_phase(std::integral_constant<int, 0>(), cell.order.step(d, 0), true);
}

// ---- Host code

// Calls f(kernel) with the kernel of a plan.
template <typename Cell, typename F>
auto with_persistent_kernel(const PersistentPlan& plan, const F& f) {
  switch (plan.vectors) {
    case 1: return f(persistent_walk<Cell, 1>);
    case 2: return f(persistent_walk<Cell, 2>);
    default: return f(persistent_walk<Cell, 4>);
  }
}

// Whether the current device runs all of the plan's blocks at once.
template <typename Cell>
bool is_resident(const PersistentPlan& plan, const Extents& e, int multiprocessors) {
  return with_persistent_kernel<Cell>(plan, [&](auto kernel) {
    int of_each = 0;
    check(gpu::allow_shared(kernel, plan.shared_bytes()), "cudaFuncSetAttribute");
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, reinterpret_cast<const void*>(kernel), kWalkThreads,
                                                        plan.shared_bytes()),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return int64_t{of_each} * multiprocessors >= plan.blocks(e);
  });
}

// Enqueues the walk. `workspace` has plan.workspace() bytes.
template <typename Cell>
void run_persistent(const Launch& launch, const PersistentPlan& plan, const Cell& cell, const void* r,
                    void* workspace) {
  const Extents& e = cell.e;
  const size_t counters = plan.counter_bytes(e);
  // What fills the last float4 of an operand is multiplied by 0, so it must be finite.
  set_bytes(launch, workspace, 0, plan.pads ? plan.workspace(e) : counters);
  const dim3 grid(static_cast<unsigned>(plan.unit_blocks), static_cast<unsigned>(plan.tiles),
                  static_cast<unsigned>(e.directions));
  with_persistent_kernel<Cell>(plan, [&](auto kernel) {
    check(gpu::launch_cooperative(kernel, grid, kWalkThreads, plan.shared_bytes(), stream_of(launch), cell, plan,
                                  static_cast<const float*>(r),
                                  reinterpret_cast<float*>(static_cast<char*>(workspace) + counters),
                                  static_cast<int*>(workspace)),
          "persistent_walk");
  });
}

}  // namespace onnx_train::cuda
