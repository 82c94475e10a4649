#include "onnx_passes/model/weight_views.h"

#include <gtest/gtest.h>

#include <cstring>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::weight_views_test {
namespace {

// What read_as_view makes of `base` has the numbers of `x`, and `x` is no initializer any more.
void expect_view(const Tensor& base, const Tensor& x, const char* described) {
  SCOPED_TRACE(described);
  const auto view = find_view(base, x);
  ASSERT_TRUE(view);
  EXPECT_EQ(describe(*view), described);
  Model model = empty_model();
  Graph& graph = *model.graph;
  Value* b = graph.add_initializer("base", base);
  Value* v = graph.add_initializer("x", x);
  Builder builder(&graph);
  const Var input = builder.var(graph.add_input("input", {x.dtype(), Dims(x.shape().begin(), x.shape().end())}));
  builder.set_name("y");
  graph.add_output((input + builder.var(v)).value());
  read_as_view(&graph, v, b, *view);
  ASSERT_EQ(graph.initializers()[0]->name(), "base");
  for (const Value* value : graph.initializers()) EXPECT_NE(value->name(), "x");
  Session session(std::move(model));
  const Tensor y = session.run("predict", {{"input", Tensor(x.dtype(), x.shape())}}).at("y");
  EXPECT_EQ(y.shape(), x.shape());
  for (int64_t i = 0; i < x.size(); ++i) EXPECT_EQ(y.at(i), x.at(i)) << i;
}

Tensor counted(Shape shape) {
  Tensor tensor(DType::kFloat, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(i + 1));
  return tensor;
}

Tensor filled(Shape shape, const std::vector<float>& values) { return Tensor::of<float>(std::move(shape), values); }

TEST(WeightViews, AreFoundAndComputed) {
  expect_view(counted({2, 3}), filled({3, 2}, {1, 4, 2, 5, 3, 6}), "transposed");
  expect_view(counted({16, 1}), counted({16}), "in another shape");
  expect_view(counted({4, 3}), filled({2, 3}, {4, 5, 6, 7, 8, 9}), "elements 1 to 2 of axis 0");
  expect_view(counted({4, 3}), filled({4}, {2, 5, 8, 11}), "elements 1 to 1 of axis 1");
  expect_view(counted({4, 3}), filled({3, 2}, {4, 7, 5, 8, 6, 9}), "elements 1 to 2 of axis 0, transposed");
  expect_view(counted({1, 3}), filled({2, 3}, {1, 2, 3, 1, 2, 3}), "repeated");
  expect_view(counted({2, 2, 3}), filled({3, 2, 2}, {1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12}), "transposed");
}

TEST(WeightViews, AreNotGuessed) {
  EXPECT_FALSE(find_view(counted({4, 3}), filled({2, 3}, {4, 5, 6, 7, 8, 10})));
  EXPECT_FALSE(find_view(counted({4, 3}), filled({}, {5})));  // a number among others
  EXPECT_FALSE(find_view(filled({2, 3}, {1, 1, 1, 1, 1, 1}), filled({3}, {1, 1, 1})));
  EXPECT_FALSE(find_view(counted({4}), counted({4}).cast(DType::kDouble)));
  EXPECT_TRUE(find_view(filled({1, 3}, {1, 1, 1}), filled({3}, {1, 1, 1})));  // one order only
}

}  // namespace
}  // namespace onnx_train::weight_views_test
