#include "runtime/plan/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

namespace {

int num_steps(const std::vector<LiveRange>& ranges) {
  int steps = 0;
  for (const LiveRange& range : ranges) steps = std::max(steps, range.last + 1);
  return steps;
}

// Returns the bytes alive at the peak step, a lower bound of the arena.
size_t peak_bytes(const std::vector<LiveRange>& ranges) {
  const auto steps = static_cast<size_t>(num_steps(ranges));
  std::vector<size_t> born(steps + 1), dead(steps + 1);
  for (const LiveRange& range : ranges) {
    born[static_cast<size_t>(range.first)] += range.bytes;
    dead[static_cast<size_t>(range.last) + 1] += range.bytes;
  }
  size_t now = 0, peak = 0;
  for (size_t step = 0; step < born.size(); ++step) {
    now += born[step];
    now -= dead[step];
    peak = std::max(peak, now);
  }
  return peak;
}

// Disjoint intervals of the arena, by offset; adjacent intervals are merged.
class Intervals {
 public:
  void add(size_t begin, size_t end) {
    const auto ends_before = [begin](const Interval& interval) { return interval.end < begin; };
    auto first = std::partition_point(intervals_.begin(), intervals_.end(), ends_before), last = first;
    for (; last != intervals_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      intervals_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      intervals_.erase(first + 1, last);
    }
  }
  // Returns the end of the first interval that intersects [begin, end), or `begin` if there is none.
  size_t skip(size_t begin, size_t end) const {
    const auto ends_before = [begin](const Interval& interval) { return interval.end <= begin; };
    const auto found = std::partition_point(intervals_.begin(), intervals_.end(), ends_before);
    return found != intervals_.end() && found->begin < end ? found->end : begin;
  }
  bool empty() const { return intervals_.empty(); }

 private:
  struct Interval {
    size_t begin, end;
  };
  std::vector<Interval> intervals_;
};

// The intervals of the arena in use at each step: a segment tree over the steps. The lifetime of a buffer is a union of
// a few segments. It conflicts with buffers that cover an enclosing segment and with buffers inside the segment. In a
// training step most activations are alive together but adjacent in the arena, so there are few intervals.
class ArenaTimeline {
 public:
  explicit ArenaTimeline(int steps) {
    while (leaves_ < static_cast<size_t>(steps)) leaves_ *= 2;
    segments_.resize(2 * leaves_);
  }

  // Returns the lowest offset at which `bytes` bytes are free during all steps [first, last].
  size_t lowest_gap(size_t bytes, int first, int last) {
    met_.clear();
    const auto meet = [&](const Intervals& intervals) {
      if (!intervals.empty()) met_.push_back(&intervals);
    };
    for_each_above(first, last, [&](Segment& segment) { meet(segment.covering); });
    for_each_part(first, last, [&](Segment& segment) { meet(segment.within); });
    size_t offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const Intervals* intervals : met_) {
        for (size_t next; (next = intervals->skip(offset, offset + bytes)) != offset; offset = next) moved = true;
      }
    }
    return offset;
  }

  void take(size_t begin, size_t end, int first, int last) {
    for_each_above(first, last, [&](Segment& segment) { segment.within.add(begin, end); });
    for_each_part(first, last, [&](Segment& segment) {
      segment.within.add(begin, end);
      segment.covering.add(begin, end);
    });
  }

 private:
  struct Segment {
    Intervals covering;  // buffers alive during the whole segment, but not during its whole parent
    Intervals within;    // all buffers alive at some step of the segment, except those that cover an ancestor
  };

  // Visits the segments whose union is [first, last].
  template <typename Visit>
  void for_each_part(int first, int last, const Visit& visit) {
    size_t begin = static_cast<size_t>(first) + leaves_, end = static_cast<size_t>(last) + leaves_ + 1;
    for (; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) visit(segments_[begin++]);
      if (end % 2 == 1) visit(segments_[--end]);
    }
  }
  // Visits the segments that contain the first or the last step.
  template <typename Visit>
  void for_each_above(int first, int last, const Visit& visit) {
    size_t left = static_cast<size_t>(first) + leaves_, right = static_cast<size_t>(last) + leaves_;
    for (; left > 0; left /= 2, right /= 2) {
      visit(segments_[left]);
      if (right != left) visit(segments_[right]);
    }
  }

  size_t leaves_ = 1;
  std::vector<Segment> segments_;  // the children of segment i are 2 i and 2 i + 1; segment 1 is the root
  std::vector<const Intervals*> met_;
};

using Order = std::vector<size_t>;

// Places buffers in order, each at the lowest offset where it overlaps no placed buffer with an overlapping lifetime
// (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
MemoryPlan place_in_order(const std::vector<LiveRange>& ranges, const Order& order) {
  MemoryPlan plan;
  plan.offsets.assign(ranges.size(), 0);
  ArenaTimeline timeline(num_steps(ranges));
  for (size_t i : order) {
    const LiveRange& range = ranges[i];
    const size_t bytes = range.bytes;
    if (bytes == 0) continue;
    const size_t offset = timeline.lowest_gap(bytes, range.first, range.last);
    timeline.take(offset, offset + bytes, range.first, range.last);
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
  }
  return plan;
}

}  // namespace

MemoryPlan plan_memory(std::vector<LiveRange> ranges, size_t alignment) {
  for (LiveRange& range : ranges) range.bytes = align_up(range.bytes, alignment);
  // Largest first is nearly always best; if it leaves gaps, longest-lived first or earliest first may be better.
  using Key = double (*)(const LiveRange&);
  constexpr Key kKeys[] = {
      [](const LiveRange& r) { return -static_cast<double>(r.bytes); },
      [](const LiveRange& r) { return -static_cast<double>(r.bytes) * (r.last - r.first + 1); },
      [](const LiveRange& r) { return -static_cast<double>(r.last - r.first); },
      [](const LiveRange& r) { return static_cast<double>(r.first); },
      [](const LiveRange& r) { return -static_cast<double>(r.last); },
  };
  constexpr size_t kMany = 8192;  // with more buffers, only one order is tried
  const size_t bound = peak_bytes(ranges);
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
