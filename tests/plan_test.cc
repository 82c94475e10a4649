#include "runtime/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "onnx_passes/passes/passes.h"
#include "runtime/session.h"
#include "tests/transformer.h"

namespace onnx_train {
namespace {

struct Planning {
  size_t nodes;  // of the step before it is lowered
  double milliseconds;
};

// The processor time to flatten, lower and plan a training step; the fastest of some.
Planning plan_step(int blocks, int times) {
  Planning result{0, 1e9};
  for (int i = 0; i < times; ++i) {
    Session session(make_training_transformer({.blocks = blocks}));
    const std::clock_t start = std::clock();  // of this process: other programs may run beside it
    session.plan("step", {{"tokens", {2, 4}}, {"labels", {2, 4}}});
    const double elapsed = 1000.0 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    result = {flatten(session.model(), "step").graph->num_nodes(), std::min(result.milliseconds, elapsed)};
  }
  std::printf("%4d blocks %6zu nodes %8.0f ms %8.1f us/node\n", blocks, result.nodes, result.milliseconds,
              1000 * result.milliseconds / static_cast<double>(result.nodes));
  return result;
}

TEST(Plan, TwoThousandNodesArePlannedInASecond) {
  const Planning planning = plan_step(24, 3);
  EXPECT_GE(planning.nodes, 1500u);
  EXPECT_LT(planning.milliseconds, 1000);
}

// Each node costs about the same in a graph of eight thousand and of twenty-seven thousand; where a step is quadratic
// it costs more than three times as much. (Two thousand nodes fit into the cache and are no measure.)
TEST(Plan, PlanningTimeGrowsWithTheNumberOfNodes) {
  const Planning small = plan_step(72, 2);
  const Planning large = plan_step(240, 2);
  const double nodes = static_cast<double>(large.nodes) / static_cast<double>(small.nodes);
  EXPECT_GE(large.nodes, 15000u);
  EXPECT_LT(large.milliseconds / small.milliseconds, 1.75 * nodes);
}

}  // namespace
}  // namespace onnx_train
