// Assigns each buffer of a plan an offset in the arena: a pure function from lifetimes to offsets. Any thread; throws
// nothing.
#pragma once

#include <cstddef>
#include <vector>

namespace onnx_train {

// A buffer that is first written by step `first` and last read by step `last`.
struct LiveRange {
  size_t bytes;
  int first;
  int last;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // one per range, multiples of the alignment
  size_t bytes = 0;             // of the arena
};

// Buffers that are alive at the same step never overlap; empty buffers have arbitrary offsets. Offsets are multiples of
// `alignment`, in bytes. Tries several orders of placement and returns the best result. Deterministic.
MemoryPlan plan_memory(std::vector<LiveRange> ranges, size_t alignment);

}  // namespace onnx_train
