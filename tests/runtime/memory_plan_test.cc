#include "runtime/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace onnx_train::memory_plan_test {
namespace {

bool alive_together(const LiveRange& a, const LiveRange& b) { return a.first <= b.last && b.first <= a.last; }

TEST(MemoryPlan, BuffersAliveTogetherNeverOverlap) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<LiveRange> ranges;
    const size_t count = random() % 60;
    for (size_t i = 0; i < count; ++i) {
      const int first = static_cast<int>(random() % 50);
      ranges.push_back({random() % 5 == 0 ? 0 : random() % 5000, first, first + static_cast<int>(random() % 20)});
    }
    const MemoryPlan plan = plan_memory(ranges, 64);
    size_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(plan.offsets[i] % 64, 0u);
      EXPECT_LE(plan.offsets[i] + ranges[i].bytes, plan.bytes);
      size_t alive = 0;
      bool lies_on_another = plan.offsets[i] == 0 || ranges[i].bytes == 0;
      for (size_t j = 0; j < count; ++j) {
        if (ranges[j].first <= ranges[i].first && ranges[i].first <= ranges[j].last) alive += ranges[j].bytes;
        const size_t end = plan.offsets[j] + (ranges[j].bytes + 63) / 64 * 64;
        lies_on_another |= alive_together(ranges[i], ranges[j]) && end == plan.offsets[i];
        if (j >= i || !alive_together(ranges[i], ranges[j]) || ranges[i].bytes == 0 || ranges[j].bytes == 0) continue;
        const bool apart = plan.offsets[i] + ranges[i].bytes <= plan.offsets[j] ||
                           plan.offsets[j] + ranges[j].bytes <= plan.offsets[i];
        EXPECT_TRUE(apart) << "ranges " << i << " and " << j;
      }
      EXPECT_TRUE(lies_on_another) << "range " << i << " leaves a gap below it";
      most = std::max(most, alive);
    }
    EXPECT_GE(plan.bytes, most);
  }
}

TEST(MemoryPlan, NothingNeedsNothing) {
  EXPECT_EQ(plan_memory({}, 64).bytes, 0u);
  EXPECT_EQ(plan_memory({{0, 0, 5}}, 64).bytes, 0u);
}

TEST(MemoryPlan, DisjointLivesShareOnePlace) {
  EXPECT_EQ(plan_memory({{640, 0, 1}, {640, 2, 3}, {320, 4, 4}}, 64).bytes, 640u);
}

}  // namespace
}  // namespace onnx_train::memory_plan_test
