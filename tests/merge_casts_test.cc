// The pass that makes one node of the casts of all weights; only CUDA has a kernel for it, elsewhere its body runs.
#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inference.h"
#include "runtime/session.h"
#include "tests/run_node.h"
#include "tests/sessions.h"

namespace onnx_train {
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
  Model model;
  model.context->opsets[""] = 21;
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
  EXPECT_EQ(count_nodes(model, "Casts", kDomain), 1);
  EXPECT_TRUE(model.graph->first()->is("Casts", kDomain));
  EXPECT_EQ(model.graph->first()->num_outputs(), 110);
  EXPECT_EQ(count_nodes(model, "Cast"), 111 + 1 + 1);  // back to float32, of x * x, and to float64
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
    EXPECT_EQ(count(merged.plan("predict", shapes_of(given)), "Casts"), default_device().name() == "cuda" ? 1 : 0);
  }
}

}  // namespace
}  // namespace onnx_train
