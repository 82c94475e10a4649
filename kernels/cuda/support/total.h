// The total of many values: a block for each piece of them, then one block for the pieces' totals. The number of pieces
// depends on the number of values alone, and each sum has one order: the same values give the same bits. For kernel
// files.
//
// A Source has a type Acc, of which Acc{} is the total of no values, and functions on the device: value(i), merge(a,
// b), and finish(total), which one thread calls.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {

struct TotalPieces {
  int64_t count, size;  // pieces, and values of a piece

  // A thread reads 8 values, unless there are a million.
  explicit TotalPieces(int64_t n)
      : count(std::clamp<int64_t>(n / (8 * int64_t{kThreads}), 1, 512)), size((n + count - 1) / count) {}
};

// The values of the second launch.
template <typename Source>
struct PiecesOf {
  using Acc = typename Source::Acc;
  Source source;
  const Acc* partials;

  __device__ Acc value(int64_t i) const { return partials[i]; }
  __device__ static Acc merge(const Acc& a, const Acc& b) { return Source::merge(a, b); }
  __device__ void finish(const Acc& total) const { source.finish(total); }
};

template <typename Source, typename Acc = typename Source::Acc>
__global__ void find_total(Source source, int64_t n, int64_t piece, Acc* partials) {
  const int64_t begin = blockIdx.x * piece, end = std::min(begin + piece, n);
  Acc total{};
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) total = Source::merge(total, source.value(i));
  total = merge_block<kThreads>(total, [](const Acc& a, const Acc& b) { return Source::merge(a, b); });
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    partials[blockIdx.x] = total;
  } else {
    source.finish(total);
  }
}

// Number of Accs that enqueue_total writes to memory.
inline int64_t total_partials(int64_t n) { return TotalPieces(n).count; }

// Calls source.finish with the total of values 0 to n - 1.
template <typename Source, typename Acc = typename Source::Acc>
void enqueue_total(const Launch& launch, const char* name, int64_t n, const Source& source, Acc* partials) {
  const TotalPieces pieces(n);
  enqueue(launch, name, find_total<Source>, static_cast<unsigned>(pieces.count), kThreads, 0, source, n, pieces.size,
          partials);
  if (pieces.count == 1) return;
  enqueue(launch, name, find_total<PiecesOf<Source>>, 1, kThreads, 0, PiecesOf<Source>{source, partials}, pieces.count,
          pieces.count, partials);
}

}  // namespace onnx_train::cuda
