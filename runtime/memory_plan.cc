#include "runtime/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace onnx_train {

namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int num_steps(const std::vector<LiveRange>& ranges) {
  int steps = 0;
  for (const LiveRange& range : ranges) steps = std::max(steps, range.last + 1);
  return steps;
}

// What the fullest step needs: no arena is smaller.
size_t fullest(const std::vector<LiveRange>& ranges) {
  const auto steps = static_cast<size_t>(num_steps(ranges));
  std::vector<size_t> born(steps + 1), dead(steps + 1);
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

// Disjoint stretches of the arena, by offset; what touches is one.
class Stretches {
 public:
  void add(size_t begin, size_t end) {
    const auto ends_before = [begin](const Stretch& stretch) { return stretch.end < begin; };
    auto first = std::partition_point(stretches_.begin(), stretches_.end(), ends_before), last = first;
    for (; last != stretches_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      stretches_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      stretches_.erase(first + 1, last);
    }
  }
  // The end of the first stretch that has something of [begin, end); `begin` where none has.
  size_t skip(size_t begin, size_t end) const {
    const auto ends_before = [begin](const Stretch& stretch) { return stretch.end <= begin; };
    const auto found = std::partition_point(stretches_.begin(), stretches_.end(), ends_before);
    return found != stretches_.end() && found->begin < end ? found->end : begin;
  }
  bool empty() const { return stretches_.empty(); }

 private:
  struct Stretch {
    size_t begin, end;
  };
  std::vector<Stretch> stretches_;
};

// Which stretches of the arena are taken at which steps: a segment tree over the steps. A buffer's life time is made of
// a few of the tree's segments; it meets what covers a segment from above, or lies within one. In a training step most
// activations are alive together, but they lie side by side: few stretches, however many they are.
class Occupancy {
 public:
  explicit Occupancy(int steps) {
    while (leaves_ < static_cast<size_t>(steps)) leaves_ *= 2;
    segments_.resize(2 * leaves_);
  }

  // The lowest offset at which nothing of [first, last] lies in the way.
  size_t lowest_gap(size_t bytes, int first, int last) {
    met_.clear();
    const auto meet = [&](const Stretches& stretches) {
      if (!stretches.empty()) met_.push_back(&stretches);
    };
    for_each_above(first, last, [&](Segment& segment) { meet(segment.covering); });
    for_each_part(first, last, [&](Segment& segment) { meet(segment.within); });
    size_t offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const Stretches* stretches : met_) {
        for (size_t next; (next = stretches->skip(offset, offset + bytes)) != offset; offset = next) moved = true;
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
    Stretches covering;  // of buffers that live through all of the segment, and not through all of the one above it
    Stretches within;    // of all buffers that live at some step of it, but for those that cover one above it
  };

  // The segments that [first, last] is made of.
  template <typename Visit>
  void for_each_part(int first, int last, const Visit& visit) {
    size_t begin = static_cast<size_t>(first) + leaves_, end = static_cast<size_t>(last) + leaves_ + 1;
    for (; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) visit(segments_[begin++]);
      if (end % 2 == 1) visit(segments_[--end]);
    }
  }
  // The segments that have the first or the last step.
  template <typename Visit>
  void for_each_above(int first, int last, const Visit& visit) {
    size_t left = static_cast<size_t>(first) + leaves_, right = static_cast<size_t>(last) + leaves_;
    for (; left > 0; left /= 2, right /= 2) {
      visit(segments_[left]);
      if (right != left) visit(segments_[right]);
    }
  }

  size_t leaves_ = 1;
  std::vector<Segment> segments_;  // segment i is made of 2 i and 2 i + 1; 1 is all steps
  std::vector<const Stretches*> met_;
};

using Order = std::vector<size_t>;

// One after the other, each at the lowest offset where it meets no placed buffer of its life time (Pisarchyk and Lee,
// "Efficient Memory Management for Deep Neural Net Inference", 2020).
MemoryPlan place_in_order(const std::vector<LiveRange>& ranges, const Order& order) {
  MemoryPlan plan;
  plan.offsets.assign(ranges.size(), 0);
  Occupancy occupancy(num_steps(ranges));
  for (size_t i : order) {
    const LiveRange& range = ranges[i];
    const size_t bytes = aligned(range.bytes);
    if (bytes == 0) continue;
    const size_t offset = occupancy.lowest_gap(bytes, range.first, range.last);
    occupancy.take(offset, offset + bytes, range.first, range.last);
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
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
