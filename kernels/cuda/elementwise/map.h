// y = f(x, ...) over broadcast operands: the kernels of all element-wise operators.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/geometry/indexing/broadcast.h"

namespace onnx_train::cuda {

// A functor that the host knows. Functors with parameters that only the device knows have their own maker, which the
// kernel calls once per thread.
template <typename F>
struct Known {
  F functor;
  __device__ F operator()() const { return functor; }
};

// An operand of the flat kernel: as many elements as the output, or one for all.
template <typename T>
struct FlatOperand {
  const T* data;
  bool moves;
};

// Elements per thread of the flat kernel: 16 bytes of the widest type.
template <typename... Ts>
inline constexpr int kFlatCount = static_cast<int>(16 / std::max({sizeof(Ts)...}));

template <int kCount, typename T>
__device__ Pack<T, kCount> load_pack(const FlatOperand<T>& operand, int64_t first) {
  if (operand.moves) return *gpu::vector_at<const Pack<T, kCount>>(operand.data + first);
  Pack<T, kCount> pack;
  for (int i = 0; i < kCount; ++i) pack.at[i] = *operand.data;
  return pack;
}

template <typename Make, typename R, typename... Ts>
__global__ void map_flat(int64_t n, Make make, const Fault* guard, R* y, FlatOperand<Ts>... operands) {
  if (stops(guard)) return;
  constexpr int kCount = kFlatCount<R, Ts...>;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  const auto f = make();
  if (first + kCount <= n) {
    const auto combine = [&](const Pack<Ts, kCount>&... packs) {
      Pack<R, kCount> result;
      for (int i = 0; i < kCount; ++i) result.at[i] = f(packs.at[i]...);
      *gpu::vector_at<Pack<R, kCount>>(y + first) = result;
    };
    combine(load_pack<kCount>(operands, first)...);
  } else {
    for (int64_t i = first; i < n; ++i) y[i] = f(operands.data[operands.moves ? i : 0]...);
  }
}

template <typename Make, typename R, typename... Ts>
__global__ void map_indexed(int64_t n, Indexing<sizeof...(Ts)> indexing, Make make, const Fault* guard, R* y,
                            const Ts*... operands) {
  if (stops(guard)) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t at[sizeof...(Ts)] = {};
  indexing.add_offsets(i, at);
  const auto f = make();
  const auto combine = [&]<size_t... kOperand>(std::index_sequence<kOperand...>) {
    return f(operands[at[kOperand]]...);
  };
  y[i] = combine(std::index_sequence_for<Ts...>{});
}

// The broadcast index map of a node's operands. A plain value, made by the host.
template <size_t kOperands>
struct MapPlan {
  int64_t size;
  bool is_flat = true;
  bool moves[kOperands];
  Indexing<kOperands> indexing;

  explicit MapPlan(const Broadcast& broadcast) : size(broadcast.size()), indexing(axes_of(broadcast)) {
    for (size_t k = 0; k < kOperands; ++k) moves[k] = broadcast.rank() > 0 && broadcast.moves(k);
    is_flat = broadcast.rank() <= 1;
  }

 private:
  static std::vector<IndexedAxis<kOperands>> axes_of(const Broadcast& broadcast) {
    std::vector<IndexedAxis<kOperands>> axes;
    for (size_t d = broadcast.rank(); d-- > 0;) {
      IndexedAxis<kOperands> axis{broadcast.dim(d), {}};
      for (size_t k = 0; k < kOperands; ++k) axis.strides[k] = broadcast.stride(d, k);
      axes.push_back(axis);
    }
    return axes;
  }
};

// Whether there is a flat kernel for these element types, the most frequent ones in training. Other types have one
// kernel for all shapes.
template <typename... Ts>
inline constexpr bool kHasFlat = ((std::is_same_v<Ts, float> || sizeof(Ts) <= 2) && ...) &&
                                 (std::is_same_v<Ts, float> || ...);

// Enqueues y = f(operands) with the f that `make` returns on the device.
template <typename R, typename Make, typename... Ts>
void run_map(const Launch& launch, const char* name, const MapPlan<sizeof...(Ts)>& plan, const Make& make,
             const Fault* guard, R* y, const Ts*... operands) {
  if (plan.size == 0) return;
  if constexpr (kHasFlat<R, Ts...>) {
    if (plan.is_flat) {
      constexpr int kCount = kFlatCount<R, Ts...>;
      const auto enqueue_flat = [&]<size_t... kOperand>(std::index_sequence<kOperand...>) {
        enqueue(launch, name, map_flat<Make, R, Ts...>, blocks_for((plan.size + kCount - 1) / kCount), kThreads, 0,
                plan.size, make, guard, y, FlatOperand<Ts>{operands, plan.moves[kOperand]}...);
      };
      enqueue_flat(std::index_sequence_for<Ts...>{});
      return;
    }
  }
  enqueue(launch, name, map_indexed<Make, R, Ts...>, blocks_for(plan.size), kThreads, 0, plan.size, plan.indexing, make,
          guard, y, operands...);
}

}  // namespace onnx_train::cuda
