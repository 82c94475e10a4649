// Where each buffer of a plan lies in its arena: a pure function from life times to offsets.
#pragma once

#include <cstddef>
#include <vector>

namespace onnx_train {

// A buffer that is written first by step `first` and read last by step `last`.
struct LiveRange {
  size_t bytes;
  int first;
  int last;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // one per range, aligned to 64 bytes
  size_t bytes = 0;             // of the arena
};

// Buffers alive at the same step never overlap; buffers of no bytes lie anywhere. The best of several orders in which
// buffers are placed. Deterministic.
MemoryPlan plan_memory(const std::vector<LiveRange>& ranges);

}  // namespace onnx_train
