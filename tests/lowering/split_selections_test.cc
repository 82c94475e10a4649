#include <gtest/gtest.h>

#include <tuple>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/support/run_node.h"

namespace onnx_train::split_selections_test {
namespace {

// The sum of x[.., entry, ..] with weights 1, 2, .. for the entries in order.
std::string text(const std::string& shape, int axis, const std::vector<int>& entries, const std::string& result) {
  std::string nodes;
  for (size_t i = 0; i < entries.size(); ++i) {
    nodes += concat("  i", i, " = Constant <value = int64 {", entries[i], "}> ()\n  w", i,
                    " = Constant <value = float {", i + 1, "}> ()\n  s", i, " = Gather <axis = ", axis, "> (x, i", i,
                    ")\n  m", i, " = Mul (s", i, ", w", i, ")\n");
    nodes += i == 0 ? "  y0 = Identity (m0)\n" : concat("  y", i, " = Add (y", i - 1, ", m", i, ")\n");
  }
  return concat(R"(<ir_version: 10, opset_import: ["" : 21]> g (float[)", shape, "] x) => (float[", result, "] y) {\n",
                nodes, "  y = Identity (y", entries.size() - 1, ")\n}");
}

TEST(SplitSelections, MakesViewsOfAllEntries) {
  struct Case {
    const char* shape;
    Shape sizes;
    int axis;
    std::vector<int> entries;
    const char* result;
    int splits, transposes;
  };
  const Case cases[] = {
      {"4,3", {4, 3}, 1, {0, 1, 2}, "4", 1, 1},
      {"4,3", {4, 3}, -1, {2, -3, 1, 1}, "4", 1, 1},  // in any order, from the end, twice
      {"3,4,2", {3, 4, 2}, 0, {0, 1, 2}, "4,2", 1, 0},
      {"2,3,4", {2, 3, 4}, 1, {1, 0, 2}, "2,4", 1, 1},
      {"3", {3}, 0, {0, 1, 2}, "", 1, 0},        // scalars
      {"4,3", {4, 3}, 1, {0, 2, 2}, "4", 0, 0},  // not all
      {"4,1", {4, 1}, 1, {0}, "4", 0, 0},        // one alone
  };
  for (const Case& c : cases) {
    const std::string model_text = text(c.shape, c.axis, c.entries, c.result);
    SCOPED_TRACE(model_text);
    Model model = from_text(model_text);
    infer_types(model.graph.get());
    EXPECT_EQ(split_selections(model), c.splits > 0);
    EXPECT_EQ(count_nodes(model, "Split"), c.splits);
    EXPECT_EQ(count_nodes(model, "Transpose"), c.transposes);
    EXPECT_EQ(count_nodes(model, "Gather"), c.splits > 0 ? 0 : static_cast<int>(c.entries.size()));
    SessionOptions without;
    without.plan.lowering.without = {"split_selections"};
    Session lowered(from_text(model_text)), plain(from_text(model_text), without);
    const TensorMap given = {{"x", random_tensor(DType::kFloat, c.sizes)}};
    EXPECT_EQ(relative_error(lowered.run("predict", given).at("y"), plain.run("predict", given).at("y")), 0);
    int copies = 0;
    for (const PlanStep& step : lowered.plan("predict", shapes_of(given)).steps())
      copies += step.node->is("Gather") || (step.node->is("Split") && step.kernel);
    EXPECT_EQ(copies, c.splits > 0 ? 0 : std::ssize(c.entries));
  }
}

// What is selected may be a selection.
TEST(SplitSelections, FollowsOneAnother) {
  const std::string model_text = R"(<ir_version: 10, opset_import: ["" : 21]> g (float[2,2,3] x) => (float[3] y)
      <int64 zero = {0}, int64 one = {1}> {
    a = Gather (x, zero)
    b = Gather (x, one)
    c = Gather (a, zero)
    d = Gather (a, one)
    e = Gather (b, one)
    f = Gather (b, zero)
    g = Sub (c, d)
    h = Div (e, f)
    y = Mul (g, h)
  })";
  Model model = from_text(model_text);
  infer_types(model.graph.get());
  EXPECT_TRUE(split_selections(model));
  EXPECT_EQ(count_nodes(model, "Gather"), 0);
  EXPECT_EQ(count_nodes(model, "Split"), 3);
  SessionOptions without;
  without.plan.lowering.on = false;
  Session lowered(from_text(model_text)), plain(from_text(model_text), without);
  const TensorMap given = {{"x", random_tensor(DType::kFloat, {2, 2, 3})}};
  EXPECT_LT(relative_error(lowered.run("predict", given).at("y"), plain.run("predict", given).at("y")), 1e-6);
}

}  // namespace
}  // namespace onnx_train::split_selections_test
