// The pass that makes one node of the casts of all weights; only CUDA has a kernel for it, elsewhere its body runs.
#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::merge_casts_test {
namespace {

// More tensors than one launch takes, of sizes on both sides of what a thread and a block take, one of them empty.
TensorMap inputs() {
  TensorMap tensors = {{"x", random_tensor(DType::kFloat, {3, 5}, 2)}};
  for (const int64_t size : {0, 1, 7, 8, 9, 2047, 2048, 2049, 5000})
    tensors["w" + std::to_string(size)] = random_tensor(DType::kFloat, {size}, 3);
  for (int i = 0; i < 100; ++i) tensors["v" + std::to_string(i)] = random_tensor(DType::kFloat, {i % 5 + 1}, 4);
  return tensors;
}

// All inputs rounded; and a cast of a computed value, and one to float64.
Model model_of_casts(DType dtype) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto add_rounded = [&](Var x) { graph.add_output(cast(cast(x, dtype), DType::kFloat).value()); };
  for (const auto& [name, tensor] : inputs()) {
    const Shape shape = tensor.shape();
    add_rounded(b.var(graph.add_input(name, {DType::kFloat, Dims(shape.begin(), shape.end())})));
  }
  const Var x = b.var(graph.find("x"));
  add_rounded(x * x);
  graph.add_output(cast(x, DType::kDouble).value());
  return model;
}

TEST(MergeCasts, TakesThoseOfWhatIsThereAtTheStart) {
  Model model = model_of_casts(DType::kBFloat16);
  infer_types(model.graph.get());
  EXPECT_TRUE(merge_casts(model));
  EXPECT_EQ(count_nodes(model, "Casts", kDomain), 2);  // and the copies in float32
  EXPECT_TRUE(model.graph->first()->is("Casts", kDomain));
  EXPECT_EQ(model.graph->first()->num_outputs(), 110);
  EXPECT_EQ(count_nodes(model, "Cast"), 1 + 1);  // of x * x, and to float64
  EXPECT_FALSE(merge_casts(model));
}

// Of a, b, c and f where the first of their readers stands; d is read before c is there, e by an element-wise node.
TEST(MergeCasts, TakesCopiesInFloat32ThatMayStandTogether) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (bfloat16[4] a, bfloat16[4] b, bfloat16[4] d, bfloat16[4] e)
        => (float[4] ya, float[4] za, float[4] yb, float[4] yc, float[4] yd, float[4] ye, float[4] yf) {
      wide_a = Cast <to = 1> (a)
      wide_d = Cast <to = 1> (d)
      yd = Softmax (wide_d)
      c = Cast <to = 16> (yd)
      f = Cast <to = 16> (yd)
      wide_c = Cast <to = 1> (c)
      wide_e = Cast <to = 1> (e)
      yc = Softmax (wide_c)
      ya = Softmax (wide_a)
      wide_b = Cast <to = 1> (b)
      yb = Softmax (wide_b)
      again_a = Cast <to = 1> (a)
      za = Softmax (again_a)
      wide_f = Cast <to = 1> (f)
      yf = Softmax (wide_f)
      ye = Exp (wide_e)
    })");
  infer_types(model.graph.get());
  EXPECT_TRUE(merge_casts(model));
  const Node* made = model.graph->find("wide_a")->producer();
  EXPECT_TRUE(made->is("Casts", kDomain));
  EXPECT_EQ(made->num_outputs(), 4);
  EXPECT_EQ(made->next(), model.graph->find("yc")->producer());
  EXPECT_EQ(model.graph->find("za")->producer()->input(0), model.graph->find("wide_a"));
  EXPECT_EQ(count_nodes(model, "Cast"), 4);  // of d, e, and to 16 bits
  EXPECT_FALSE(merge_casts(model));
}

TEST(MergeCasts, EveryBitIsThatOfTheSingleCasts) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const TensorMap given = inputs();
    SessionOptions single;
    single.plan.lowering.on = false;
    Session expected(model_of_casts(dtype), single), merged(model_of_casts(dtype));
    const TensorMap wanted = expected.run("predict", given);
    for (const auto& [name, tensor] : merged.run("predict", given)) {
      EXPECT_EQ(relative_error(tensor, wanted.at(name)), 0) << name;
    }
    EXPECT_EQ(count(merged.plan("predict", shapes_of(given)), "Casts"), default_device().name() == "cuda" ? 2 : 0);
  }
}

// To have the copy of one weight again, a plan would make those of all of them.
TEST(MergeCasts, APlanThatComputesValuesAgainKeepsThemApart) {
  if (default_device().name() != "cuda") GTEST_SKIP() << "only CUDA has Casts";
  Model model = make_transformer({.blocks = 2, .width = 32, .tokens = kDeviceTestTokens});
  BuildOptions build;
  build.precision = Precision::kBfloat16;
  build_training_model(&model, build);
  const auto shapes = shapes_of(batch());
  Session expected(clone(model));
  const Plan& merged = expected.plan("step", shapes);
  EXPECT_GT(count(merged, "Casts"), 0);
  SessionOptions options;
  options.plan.memory = merged.arena_bytes();
  EXPECT_EQ(count(Session(clone(model), options).plan("step", shapes), "Casts"), count(merged, "Casts"));
  options.plan.memory -= options.plan.memory / 8;
  Session session(clone(model), options);
  const Plan& plan = session.plan("step", shapes);
  EXPECT_GT(plan.recomputation().nodes, 0u);
  EXPECT_EQ(count(plan, "Casts"), 0);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(session.run("step", batch(i)).at("loss").at(0), expected.run("step", batch(i)).at("loss").at(0));
  expect_equal(states_of(session), states_of(expected));
}

}  // namespace
}  // namespace onnx_train::merge_casts_test
