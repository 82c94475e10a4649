// flatten, state_of and strip_training on a training model written by hand.
#include <gtest/gtest.h>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/plain_model.h"
#include "onnx_passes/passes.h"
#include "tests/support/empty_model.h"

namespace onnx_train::flatten_test {
namespace {

// y = relu(x w); step: loss = mean(y²), w <- w - rate w, count <- count + 1, previous <- w.
Model training_model() {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21, "onnx_train" : 1]>
    net (float[N, 2] x, float[N, 2] unused) => (float[N, 2] y)
      <float[2, 2] w = {1, 2, 3, 4}, float[2, 2] previous = {0, 0, 0, 0}> {
      h = MatMul(x, w)
      y = Relu(h)
      spare = Neg(unused)
    })");
  model.set_metadata("onnx_train.loss", "mse");
  model.set_metadata("author", "somebody");
  EntryPoint& step = model.add_entry_point("step");
  Graph& g = *step.algorithm;
  Value* count = g.add_initializer("state/step", Tensor::scalar<int64_t>(7));
  Value* rate = g.add_input("learning_rate", {DType::kFloat, Dims{}});
  g.add_initializer("learning_rate", Tensor::scalar(0.5f));
  Builder b(&g);
  const Var y = b.var(model.graph->find("y"));
  const Var w = b.var(model.graph->find("w"));
  b.set_name("loss");
  g.add_output(b.op("ReduceMean", {y * y}, {{"keepdims", 0}}).value());
  g.rename(g.outputs()[0], "mean");
  b.set_name("next/w");
  Var next_w = w - b.var(rate) * w;
  g.rename(next_w.value(), "new w");
  b.set_name("next/state/step");
  const Var next_count = b.var(count) + b.constant(Tensor::scalar<int64_t>(1));
  g.add_output(next_w.value());
  g.add_output(next_count.value());
  step.update_bindings = {{model.graph->find("w"), next_w.value()},
                          {count, next_count.value()},
                          {model.graph->find("previous"), model.graph->find("w")}};

  Graph& init = *step.initialization;
  Value* seed = init.add_initializer("seed", Tensor::scalar<uint64_t>(3));
  Builder i(&init);
  const Var drawn = expand(cast(i.var(seed), DType::kFloat), i.ints({2, 2}));
  init.add_output(drawn.value());
  step.initialization_bindings = {{model.graph->find("w"), drawn.value()},
                                  {model.graph->find("previous"), drawn.value()}};
  assign_roles(&model);
  return model;
}

std::vector<std::string> names(const std::vector<Value*>& values) {
  std::vector<std::string> result;
  for (const Value* v : values) result.push_back(v->name());
  return result;
}

using Names = std::vector<std::string>;

TEST(Flatten, StepHasStateAsInputsAndOutputs) {
  const Model model = training_model();
  const Model flat = flatten(model, "step");
  EXPECT_EQ(names(flat.graph->inputs()), (Names{"x", "learning_rate", "w", "previous", "state/step"}));
  EXPECT_EQ(flat.graph->outputs().size(), 5u) << to_text(flat);
  EXPECT_EQ(flat.graph->outputs()[0]->name(), "mean");
  EXPECT_EQ(flat.graph->outputs()[2]->name(), "next/w");
  EXPECT_EQ(flat.graph->outputs()[3]->name(), "next/state/step");
  EXPECT_EQ(flat.graph->outputs()[4]->name(), "next/previous");
  EXPECT_EQ(to_string(flat.graph->find("next/previous")->type()), "float[2,2]");
  EXPECT_TRUE(flat.graph->find("learning_rate")->is_initializer());
  EXPECT_FALSE(flat.graph->find("w")->is_initializer());
  EXPECT_EQ(flat.graph->find("spare"), nullptr);
  EXPECT_EQ(flat.context->opset("onnx_train"), 0);
  EXPECT_EQ(state_of(model, "step"), (Names{"w", "previous", "state/step"}));
}

TEST(Flatten, PredictKeepsWeightsAndDropsTheRest) {
  const Model model = training_model();
  const Model flat = flatten(model, "predict");
  EXPECT_EQ(names(flat.graph->initializers()), Names{"w"});
  EXPECT_EQ(names(flat.graph->inputs()), (Names{"x", "unused"}));
  EXPECT_EQ(state_of(model, "predict"), Names{"w"});
  EXPECT_TRUE(flat.entry_points.empty());
}

TEST(Flatten, PredictOfAPlainModelTakesTheStateAsInputsWithDefaults) {
  const Model model = training_model();
  const Model flat = plain_model(model, "predict");
  EXPECT_EQ(names(flat.graph->inputs()), (Names{"x", "unused", "w"}));
  EXPECT_EQ(names(flat.graph->initializers()), Names{"w"});
  EXPECT_EQ(to_text(plain_model(model, "step")), to_text(flatten(model, "step")));
}

TEST(Flatten, InitializeHasASeedWithADefault) {
  const Model model = training_model();
  const Model flat = flatten(model, "initialize");
  EXPECT_EQ(names(flat.graph->inputs()), Names{"seed"});
  EXPECT_EQ(names(flat.graph->outputs()), (Names{"next/w", "next/previous"}));
  EXPECT_TRUE(flat.graph->find("seed")->is_initializer());
}

TEST(Flatten, UnknownEntryPointNamesTheOthers) {
  try {
    flatten(training_model(), "stop");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("predict, initialize, step"), std::string::npos) << e.what();
  }
}

TEST(Flatten, BindingOfAnotherShapeIsRefused) {
  Model model = training_model();
  EntryPoint& step = model.entry_points[0];
  step.update_bindings.pop_back();
  step.update_bindings.push_back({model.graph->find("previous"), step.algorithm->find("next/state/step")});
  EXPECT_THROW(flatten(model, "step"), Error);
}

TEST(StripTraining, KeepsTheUsersMetadata) {
  const Model inference = strip_training(training_model());
  EXPECT_EQ(inference.metadata("onnx_train.loss"), "");
  EXPECT_EQ(inference.metadata("author"), "somebody");
  onnx::ModelProto proto;
  to_proto(inference, &proto);
  EXPECT_EQ(proto.training_info_size(), 0);
}

TEST(StripTraining, LeavesNoFunctionsOfOurs) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const Var x = b.var(model.graph->add_input("x", {DType::kFloat, Dims{"N", 3}}));
  b.set_name("y");
  model.graph->add_output(call(b, "Swish", {x}, {{"alpha", 1.5f}}).value());
  const Model inference = strip_training(model);
  for (const Node* node : inference.graph->nodes()) EXPECT_EQ(node->domain(), "");
  EXPECT_EQ(inference.graph->outputs()[0]->name(), "y");
  EXPECT_TRUE(inference.context->functions.empty());
  EXPECT_EQ(inference.context->opsets.count(kDomain), 0u);
}

}  // namespace
}  // namespace onnx_train::flatten_test
