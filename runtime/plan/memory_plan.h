// Assigns each buffer of a plan an offset in the arena. A pure function; any thread; throws nothing.
#pragma once

#include <cstddef>
#include <vector>

namespace onnx_train {

// A buffer that step `first` writes first and step `last` reads last.
struct LiveRange {
  size_t bytes;
  int first;
  int last;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // one per range, multiples of the alignment
  size_t bytes = 0;             // size of the arena
};

// Returns offsets at which buffers alive at the same step do not overlap; empty buffers have arbitrary offsets. Offsets
// are multiples of `alignment`, in bytes. Tries several orders of placement and returns the best result. Deterministic.
MemoryPlan plan_memory(std::vector<LiveRange> ranges, size_t alignment);

}  // namespace onnx_train
