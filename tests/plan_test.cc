#include "runtime/plan.h"

#include <gtest/gtest.h>

#include <chrono>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes/passes.h"
#include "runtime/session.h"

namespace onnx_train {
namespace {

// `layers` of matmul, bias, relu, 8 wide; the input's first axis is dynamic.
Model make_deep_model(int layers) {
  Model model;
  model.context->opsets[""] = 21;
  Graph& graph = *model.graph;
  Builder b(&graph);
  Var x = b.var(graph.add_input("x", {DType::kFloat, Dims{"N", 8}}));
  for (int i = 0; i < layers; ++i) {
    const Var w = b.var(graph.add_initializer(concat("w", i), Tensor::full(DType::kFloat, {8, 8}, 0.1)));
    const Var bias = b.var(graph.add_initializer(concat("b", i), Tensor::full(DType::kFloat, {8}, 0.01)));
    b.set_name(concat("h", i));
    x = b.op("Relu", {matmul(x, w) + bias});
  }
  graph.add_output(x.value());
  return model;
}

TEST(Plan, AThousandNodesArePlannedInASecond) {
  Model model = make_deep_model(160);
  BuildOptions options;
  options.loss = "cross_entropy";
  build_training_model(&model, options);
  Session session(std::move(model));
  const auto start = std::chrono::steady_clock::now();
  const Plan& plan = session.plan("step", {{"x", {4, 8}}, {"labels", {4}}});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("nodes", static_cast<int>(plan.steps().size()));
  EXPECT_GE(plan.steps().size(), 600u);
  EXPECT_LT(seconds, 1.0) << plan.steps().size() << " steps";
  std::printf("%zu steps planned in %.0f ms\n", plan.steps().size(), 1000 * seconds);
}

}  // namespace
}  // namespace onnx_train
