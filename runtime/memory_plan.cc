#include "runtime/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace onnx_train {

// Greedy by size: the largest buffer first, each at the lowest offset where it meets no placed buffer of its life
// time (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
MemoryPlan plan_memory(const std::vector<LiveRange>& ranges) {
  constexpr size_t kAlignment = 64;
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranges[a].bytes > ranges[b].bytes; });

  MemoryPlan plan;
  plan.offsets.assign(ranges.size(), 0);
  std::vector<size_t> placed;  // by offset
  for (size_t i : order) {
    const LiveRange& range = ranges[i];
    const size_t bytes = (range.bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes == 0) continue;
    size_t offset = 0;
    for (size_t j : placed) {
      const LiveRange& other = ranges[j];
      if (other.last < range.first || range.last < other.first) continue;
      if (offset + bytes <= plan.offsets[j]) break;
      offset = std::max(offset, plan.offsets[j] + (other.bytes + kAlignment - 1) / kAlignment * kAlignment);
    }
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
    const auto by_offset = [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i, by_offset), i);
  }
  return plan;
}

}  // namespace onnx_train
