#include "runtime/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace onnx_train {

namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What the fullest step needs: no arena is smaller.
size_t fullest(const std::vector<LiveRange>& ranges) {
  int end = 0;
  for (const LiveRange& range : ranges) end = std::max(end, range.last + 1);
  std::vector<size_t> born(static_cast<size_t>(end) + 1), dead(static_cast<size_t>(end) + 1);
  for (const LiveRange& range : ranges) {
    born[static_cast<size_t>(range.first)] += aligned(range.bytes);
    dead[static_cast<size_t>(range.last) + 1] += aligned(range.bytes);
  }
  size_t now = 0, most = 0;
  for (size_t step = 0; step < born.size(); ++step) {
    now += born[step];
    now -= dead[step];
    most = std::max(most, now);
  }
  return most;
}

using Order = std::vector<size_t>;

// One after the other, each at the lowest offset where it meets no placed buffer of its life time (Pisarchyk and Lee,
// "Efficient Memory Management for Deep Neural Net Inference", 2020).
MemoryPlan place_in_order(const std::vector<LiveRange>& ranges, const Order& order) {
  struct Placed {
    size_t offset, end;
    int first, last;
  };
  MemoryPlan plan;
  plan.offsets.assign(ranges.size(), 0);
  std::vector<Placed> placed;  // by offset
  for (size_t i : order) {
    const LiveRange& range = ranges[i];
    const size_t bytes = aligned(range.bytes);
    if (bytes == 0) continue;
    size_t offset = 0;
    for (const Placed& other : placed) {
      if (other.last < range.first || range.last < other.first) continue;
      if (offset + bytes <= other.offset) break;
      offset = std::max(offset, other.end);
    }
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
    const auto behind = [](size_t at, const Placed& other) { return at < other.offset; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset, behind),
                  {offset, offset + bytes, range.first, range.last});
  }
  return plan;
}

}  // namespace

MemoryPlan plan_memory(const std::vector<LiveRange>& ranges) {
  // The largest first is nearly always best; where it leaves gaps, the longest-lived or the earliest first may not.
  using Key = double (*)(const LiveRange&);
  constexpr Key kKeys[] = {
      [](const LiveRange& r) { return -static_cast<double>(r.bytes); },
      [](const LiveRange& r) { return -static_cast<double>(r.bytes) * (r.last - r.first + 1); },
      [](const LiveRange& r) { return -static_cast<double>(r.last - r.first); },
      [](const LiveRange& r) { return static_cast<double>(r.first); },
      [](const LiveRange& r) { return -static_cast<double>(r.last); },
  };
  constexpr size_t kMany = 8192;  // so many that one order has to do
  const size_t bound = fullest(ranges);
  MemoryPlan best;
  for (const Key key : kKeys) {
    Order order(ranges.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(ranges[a]) < key(ranges[b]); });
    MemoryPlan plan = place_in_order(ranges, order);
    if (best.offsets.empty() || plan.bytes < best.bytes) best = std::move(plan);
    if (best.bytes == bound || ranges.size() > kMany) break;
  }
  return best;
}

}  // namespace onnx_train
