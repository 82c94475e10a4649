#include "runtime/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/session/session_settings.h"
#include "tests/support/empty_model.h"
#include "tests/support/sessions.h"

namespace onnx_train::session_test {
namespace {

// predict: y = x w + b. step: w and b move against the gradient of the squared error; state/step counts.
Model make_training_model() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder predict(&graph);
  const Var x = predict.var(graph.add_input("x", {DType::kFloat, Dims{"N", 3}}));
  Value* w = graph.add_initializer("w", Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  Value* b = graph.add_initializer("b", Tensor::of<float>({2}, {0.5f, -0.5f}));
  const Var product = matmul(x, predict.var(w));
  predict.set_name("y");
  const Var y = product + predict.var(b);
  graph.add_output(y.value());

  EntryPoint& step = model.add_entry_point("step");
  Graph& algorithm = *step.algorithm;
  Builder s(&algorithm);
  const Var target = s.var(algorithm.add_input("target", {DType::kFloat, Dims{"N", 2}}));
  const Var rate = s.var(algorithm.add_input("learning_rate", {DType::kFloat, Dims{}}));
  algorithm.set_initializer(rate.value(), Tensor::scalar(0.01f));
  Value* count = algorithm.add_initializer("state/step", Tensor::scalar<int64_t>(0));
  const Var error = s.var(y.value()) - target;
  const Var loss = sum_all(error * error);
  const Var next_w = s.var(w) - rate * (matmul(transpose_last(s.var(x.value())), error) * 2.0);
  const Var next_b = s.var(b) - rate * (reduce_sum(error, {0}, false) * 2.0);
  const Var next_count = s.var(count) + 1.0;
  algorithm.rename(loss.value(), "loss");
  for (const auto& [state, next] : {std::pair{w, next_w}, {b, next_b}, {count, next_count}}) {
    algorithm.rename(next.value(), "next/" + state->name());
    step.update_bindings.push_back({state, next.value()});
  }
  algorithm.set_outputs({loss.value(), next_w.value(), next_b.value(), next_count.value()});
  return model;
}

TensorMap make_batch(int64_t n) {
  Tensor x(DType::kFloat, {n, 3}), target(DType::kFloat, {n, 2});
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, 0.1 * static_cast<double>(i % 7) - 0.2);
  for (int64_t i = 0; i < target.size(); ++i) target.set(i, 0.3 * static_cast<double>(i % 5));
  return {{"x", x}, {"target", target}};
}

std::string bytes(const Tensor& tensor) { return {static_cast<const char*>(tensor.data()), tensor.bytes()}; }

TEST(Session, TheLossFallsAndTheStepsAreCounted) {
  Session session(make_training_model());
  const double first = session.run("step", make_batch(8)).at("loss").at(0);
  double last = first;
  for (int i = 0; i < 50; ++i) last = session.run("step", make_batch(8)).at("loss").at(0);
  EXPECT_LT(last, 0.5 * first);
  EXPECT_EQ(session.state().get("state/step").at(0), 51);
}

TEST(Session, AnEntryPointOfAnotherProgramRunsUnderItsOwnName) {
  Model model = make_training_model();
  model.find_entry_point(Entry::kStep)->algorithm->shell().set_name("distill the teacher");
  const EntryName name = model.entry_points[0].name();
  EXPECT_EQ(name.kind(), Entry::kOther);
  EXPECT_TRUE(trains(name.kind()));
  Session session(std::move(model)), step(make_training_model());
  EXPECT_FALSE(session.has_entry(Entry::kStep));
  EXPECT_EQ(session.run("distill the teacher", make_batch(8)).at("loss").at(0),
            step.run(Entry::kStep, make_batch(8)).at("loss").at(0));
  EXPECT_THROW(session.run("distill", make_batch(8)), Error);
}

TEST(Session, PredictReadsTheTrainedWeights) {
  Session session(make_training_model());
  const TensorMap batch = make_batch(4);
  const Tensor before = session.run("predict", {{"x", batch.at("x")}}).at("y").clone();
  session.run("step", batch);
  const Tensor after = session.run("predict", {{"x", batch.at("x")}}).at("y").clone();
  EXPECT_NE(bytes(before), bytes(after));
  Session restored(clone(session.snapshot()));
  EXPECT_EQ(bytes(restored.run("predict", {{"x", batch.at("x")}}).at("y")), bytes(after));
}

TEST(Session, UpdatesThatAreCopiedEqualThoseInPlace) {
  SessionOptions copy;
  copy.plan.lowering.without = {kUpdateInPlace};
  Session a(make_training_model()), b(make_training_model(), copy);
  for (int i = 0; i < 5; ++i) {
    a.run("step", make_batch(4));
    b.run("step", make_batch(4));
  }
  for (const std::string& name : a.state().names())
    EXPECT_EQ(bytes(a.state().get(name)), bytes(b.state().get(name))) << name;
  const std::map<std::string, Shape> shapes = shapes_of(make_batch(4));
  const auto in_place = [](const StatePort& port) { return port.in_place; };
  const std::vector<StatePort>&of_a = a.plan("step", shapes).states(), &of_b = b.plan("step", shapes).states();
  EXPECT_TRUE(std::any_of(of_a.begin(), of_a.end(), in_place));
  EXPECT_TRUE(std::none_of(of_b.begin(), of_b.end(), in_place));
}

TEST(Session, NoLoweringGivesTheSameNumbers) {
  SessionOptions plain;
  plain.plan.lowering.on = false;
  Session a(make_training_model()), b(make_training_model(), plain);
  for (int i = 0; i < 5; ++i) {
    const Tensor &lowered = a.run("step", make_batch(4)).at("loss"),
                 &as_it_is = b.run("step", make_batch(4)).at("loss");
    if (default_device().name() == "cuda") {  // generated kernels sum rows in another order
      EXPECT_FLOAT_EQ(lowered.at(0), as_it_is.at(0));
    } else {
      EXPECT_EQ(lowered.at(0), as_it_is.at(0));
    }
  }
}

TEST(Session, ShapesGetAPlanEach) {
  Session session(make_training_model());
  for (int64_t n : {4, 1, 4, 7, 1, 0})
    EXPECT_EQ(session.run("predict", {{"x", make_batch(n).at("x")}}).at("y").shape(), (Shape{n, 2}));
}

TEST(Session, AsManyPlansAreKeptAsItIsTold) {
  for (const auto& [max_plans, expected] : {std::pair<int64_t, int>{1, 3}, {2, 2}}) {
    SessionSettings settings;
    settings.max_plans = max_plans;
    SessionOptions options = resolve(settings);
    int made = 0;
    options.plan.pipeline.observe = [&](const PassTiming* pass, const Model&) {
      made += pass && pass->name == "set_shapes";
    };
    Session session(make_training_model(), options);
    for (int64_t n : {4, 1, 4}) session.run("predict", {{"x", make_batch(n).at("x")}});
    EXPECT_EQ(made, expected) << max_plans;
  }
}

TEST(Session, BadInputsAreNamed) {
  Session session(make_training_model());
  const auto message = [&](const TensorMap& inputs) {
    try {
      session.run("step", inputs);
    } catch (const Error& error) {
      return concat(error.code_text(), " ", error.what());
    }
    return std::string("no error");
  };
  TensorMap batch = make_batch(4);
  EXPECT_THAT(message({{"x", batch.at("x")}}), testing::HasSubstr("'target'"));
  batch["unknown"] = Tensor::scalar(1.0f);
  EXPECT_THAT(message(batch), testing::HasSubstr("'unknown'"));
  batch = make_batch(4);
  batch["target"] = make_batch(5).at("target");
  EXPECT_THAT(message(batch), testing::HasSubstr("'N'"));
  batch["target"] = make_batch(4).at("target").cast(DType::kDouble);
  EXPECT_THAT(message(batch), testing::AllOf(testing::StartsWith("OT5003 "), testing::HasSubstr("double")));
}

TEST(Session, AStepOnNoSamplesIsRefusedAndAPredictionIsEmpty) {
  Session session(make_training_model());
  try {
    session.run("step", make_batch(0));
    FAIL() << "a step on no samples";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the batch of entry point 'step' is empty: 'target' is float[0,2]");
  }
  EXPECT_EQ(session.contents("state/step").at(0), 0);
  EXPECT_EQ(session.run("predict", {{"x", make_batch(0).at("x")}}).at("y").shape(), Shape({0, 2}));
}

TEST(Session, InputsInDeviceMemoryGiveTheBitsOfInputsOnTheHost) {
  Session a(make_training_model()), b(make_training_model());
  for (const int64_t n : {8, 3, 8}) {
    const TensorMap batch = make_batch(n);
    const DeviceCopies copies(b.device(), batch);
    TensorMap inputs = copies.tensors();
    if (n == 3) inputs["target"] = batch.at("target");  // one on the device, one on the host
    const std::string loss = bytes(a.run("step", batch).at("loss"));
    EXPECT_EQ(loss, bytes(b.run("step", inputs).at("loss"))) << n;
  }
  expect_equal(states_of(a), states_of(b));
}

TEST(Session, InputsInDeviceMemoryAreCheckedByNameTypeAndShape) {
  Session session(make_training_model());
  const TensorMap batch = make_batch(4);
  const DeviceCopies copies(session.device(), batch);
  const auto with_target = [&](DType dtype, const Shape& shape) {
    return TensorMap{{"x", batch.at("x")},
                     {"target", Tensor::on_device(dtype, shape, copies.tensors().at("x").data())}};
  };
  EXPECT_THROW(session.run("step", with_target(DType::kInt32, {4, 2})), Error);
  EXPECT_THROW(session.run("step", with_target(DType::kFloat, {3, 2})), Error);
  session.run("step", with_target(DType::kFloat, {4, 2}));
}

// The weight w is a target of the right shape; a step that read it in place would read what it has just written.
TEST(Session, AStateOfItsOwnIsReadAsInputBeforeTheStepChangesIt) {
  Session a(make_training_model()), b(make_training_model());
  if (a.device().uses_host_memory()) GTEST_SKIP() << "inputs are read in place";
  const Tensor x = make_batch(3).at("x");
  for (int i = 0; i < 4; ++i) {
    const Tensor w = Tensor::on_device(DType::kFloat, {3, 2}, a.state().data(a.state().index("w")));
    a.run("step", {{"x", x}, {"target", w}});
    b.run("step", {{"x", x}, {"target", b.state().get("w")}});
  }
  expect_equal(states_of(a), states_of(b));
}

TEST(Session, AStateIsSetFromDeviceMemory) {
  Session a(make_training_model()), b(make_training_model());
  a.run("step", make_batch(4));
  for (const std::string& name : a.state().names()) {
    const size_t i = a.state().index(name);
    b.state().set(name, Tensor::on_device(a.state().dtype(i), a.state().shape(i), a.state().data(i)));
  }
  expect_equal(states_of(a), states_of(b));
  const void* w = a.state().data(a.state().index("w"));
  EXPECT_THROW(b.state().set("w", Tensor::on_device(DType::kFloat, {2, 3}, w)), Error);
}

// A model that nobody has imported: a training model, or one of this API's caller.
TEST(Session, ElementTypesThatDisagreeAreNamed) {
  Model model = empty_model();
  Builder predict(model.graph.get());
  const Var x = predict.var(model.graph->add_input("x", {DType::kDouble, Dims{"N"}}));
  const Var narrow = predict.var(model.graph->add_input("narrow", {DType::kFloat, Dims{"N"}}));
  const Var condition = predict.var(model.graph->add_input("condition", {DType::kBool, Dims{"N"}}));
  predict.set_name("y");
  model.graph->add_output(where(condition, x, narrow).value());
  Session session(std::move(model));
  try {
    session.run("predict", {{"condition", Tensor(DType::kBool, {9})},
                            {"x", Tensor(DType::kDouble, {9})},
                            {"narrow", Tensor(DType::kFloat, {9})}});
    ADD_FAILURE() << "float was read as double";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'x' of type double and 'narrow' of type float must have one type"));
  }
}

TEST(Session, ALossThatIsNotFiniteIsAnErrorIfItIsRefused) {
  for (const bool refuse : {false, true}) {
    SessionOptions options;
    options.refuse_non_finite_loss = refuse;
    Session session(make_training_model(), options);
    session.run("step", make_batch(4));
    std::vector<std::string> before;
    for (const std::string& name : session.state().names()) before.push_back(bytes(session.state().get(name)));
    TensorMap batch = make_batch(4);
    batch.at("x").set(5, NAN);
    if (!refuse) {
      EXPECT_TRUE(std::isnan(session.run("step", batch).at("loss").at(0)));
      EXPECT_TRUE(std::isnan(session.state().get("w").at(2)));
      continue;
    }
    try {
      session.run("step", batch);
      ADD_FAILURE() << "a loss of NaN is accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("the loss is NaN"));
    }
    if (!session.device().uses_host_memory()) continue;  // there it is known after the update
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(bytes(session.state().get(session.state().names()[i])), before[i]) << session.state().names()[i];
    }
    session.run("step", make_batch(4));  // the session goes on
    EXPECT_TRUE(std::isnan(session.run("predict", {{"x", batch.at("x")}}).at("y").at(2)));
  }
}

}  // namespace
}  // namespace onnx_train::session_test
