#include <gtest/gtest.h>

#include <cstring>

#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::merge_updates_test {
namespace {

// Weights from one element to some ten thousand, to be shared out among threads in other pieces than their own.
Model make_model(DType dtype, const std::string& optimizer, const std::string& loss_scale = "") {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto weight = [&](const char* name, Shape shape, unsigned seed) {
    return b.var(graph.add_initializer(name, random_tensor(dtype, std::move(shape), seed)));
  };
  const Var x = b.var(graph.add_input("x", {dtype, Dims{"N", 7}}));
  const Var h = tanh(matmul(x, weight("a", {7, 1500}, 1)) + weight("b", {1500}, 2));
  const Var u = matmul(h, weight("c", {1500, 33}, 3)) * weight("d", {33}, 4);
  b.set_name("y");
  graph.add_output(matmul(u + weight("e", {1, 33}, 5), weight("f", {33, 1}, 6)).value());
  BuildOptions options;
  options.loss = "mse";
  options.optimizer = optimizer;
  options.clip_norm = 0.5;
  options.loss_scale = loss_scale;
  build_training_model(&model, options);
  return model;
}

void expect_equal_states(Session& a, Session& b) {
  for (const std::string& name : a.state().names()) {
    const Tensor x = a.state().get(name), y = b.state().get(name);
    ASSERT_EQ(x.bytes(), y.bytes()) << name;
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.bytes()), 0) << name;
  }
}

class MergeUpdates : public testing::TestWithParam<const char*> {
 protected:
  ~MergeUpdates() override { set_num_threads(threads_); }

 private:
  const int threads_ = num_threads();
};

TEST_P(MergeUpdates, EveryBitIsThatOfTheSingleUpdates) {
  for (DType dtype : {DType::kFloat, DType::kDouble}) {
    SessionOptions single, merged, swapped;
    single.plan.lowering.without = {"merge_updates"};
    swapped.plan.lowering.without = {"update_in_place"};
    const TensorMap batch = {{"x", random_tensor(dtype, {5, 7}, 8)}, {"labels", random_tensor(dtype, {5, 1}, 9)}};
    for (int threads : {1, 2, 3}) {
      // With as many threads: without AVX-512, oneDNN's float32 products depend on their number.
      set_num_threads(threads);
      Session expected(make_model(dtype, GetParam()), single);
      for (int i = 0; i < 3; ++i) expected.run("step", batch);
      for (const SessionOptions& options : {merged, swapped}) {
        SCOPED_TRACE(concat(name(dtype), ", ", threads, " threads, ",
                            options.plan.lowering.without.empty() ? "in place" : "swapped"));
        Session session(make_model(dtype, GetParam()), options);
        for (int i = 0; i < 3; ++i) session.run("step", batch);
        const Plan& plan = session.plan("step", {{"x", {5, 7}}, {"labels", {5, 1}}});
        EXPECT_EQ(count(plan, "Updates"), 1);
        EXPECT_EQ(count(plan, "Sgd") + count(plan, "Adam") + count(plan, "AdamW"), 0);
        for (const StatePort& port : plan.states()) {
          const ValueRole* role = session.state().role(session.state().index(port.name));
          if (role && role->name == roles::kStep) continue;  // counted before the loss is known, it waits for the end
          EXPECT_EQ(port.in_place, options.plan.lowering.without.empty()) << port.name;
        }
        expect_equal_states(session, expected);
      }
    }
  }
}

// The second step overflows.
TEST_P(MergeUpdates, WithLossScalingTheirGuardsJoin) {
  SessionOptions single, merged, swapped;
  single.plan.lowering.without = {"merge_updates"};
  swapped.plan.lowering.without = {"update_in_place"};
  const auto run_steps = [](Session& session) {
    for (const float label : {1.0f, 1e38f, 2.0f}) {
      Tensor labels(DType::kFloat, {5, 1});
      for (int64_t i = 0; i < 5; ++i) labels.set(i, label);
      session.run("step", {{"x", random_tensor(DType::kFloat, {5, 7}, 8)}, {"labels", labels}});
    }
  };
  Session expected(make_model(DType::kFloat, GetParam(), "dynamic"), single);
  run_steps(expected);
  EXPECT_EQ(expected.state().get("state/step").at(0), 2);
  for (const SessionOptions& options : {merged, swapped}) {
    Session session(make_model(DType::kFloat, GetParam(), "dynamic"), options);
    run_steps(session);
    const Plan& plan = session.plan("step", {{"x", {5, 7}}, {"labels", {5, 1}}});
    EXPECT_EQ(count(plan, "Updates"), 1);
    EXPECT_EQ(count(plan, "Sgd") + count(plan, "Adam") + count(plan, "AdamW"), 0);
    for (const PlanStep& step : plan.steps()) {
      EXPECT_FALSE(step.node->is("Where") && num_elements(step.node->output()->type().shape()) > 1)
          << step.node->label();
    }
    expect_equal_states(session, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, MergeUpdates,
                         testing::Values("sgd", "sgd(weight_decay=0.1)", "sgd(momentum=0.9, dampening=0.5)",
                                         "sgd(momentum=0.9, nesterov=true)", "adam(weight_decay=0.1)", "adamw"));

// Three plain steps w -= rate g, whose gradients are other weights: a takes b's, b takes a's through a view, c its own
// input's.
Model make_entangled_model() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  const int64_t n = 100000;
  Value* weights[4];
  const Shape shapes[] = {{n}, {n / 4, 4}, {n}, {n}};
  const char* names[] = {"a", "b", "c", "d"};
  for (unsigned i = 0; i < 4; ++i) {
    weights[i] = graph.add_initializer(names[i], random_tensor(DType::kFloat, shapes[i], i + 1));
  }
  graph.add_output(Builder(&graph).op("Identity", {Builder(&graph).var(weights[0])}).value());
  EntryPoint& step = model.add_entry_point("step");
  Builder s(step.algorithm.get());
  const Var x = s.var(step.algorithm->add_input("x", {DType::kFloat, Dims{n}}));
  const Var gradients[] = {reshape(s.var(weights[1]), {n}), reshape(s.var(weights[0]), {n / 4, 4}), x, x};
  const Attrs attrs = {{"momentum", Tensor::scalar(0.0)},
                       {"dampening", Tensor::scalar(0.0)},
                       {"nesterov", 0},
                       {"weight_decay", Tensor::scalar(0.0)}};
  const Var one = s.var(step.algorithm->add_input("one", {DType::kFloat, Dims{}}));
  const Var count = s.var(step.algorithm->add_input("count", {DType::kInt64, Dims{}}));
  for (int i = 0; i < 4; ++i) {
    s.set_name(concat("next/", names[i]));
    const Var next = call(s, "Sgd", {s.var(weights[i]), gradients[i], Var(), count, one, one}, attrs);
    step.update_bindings.push_back({weights[i], next.value()});
    step.algorithm->add_output(next.value());
  }
  return model;
}

TEST(MergeUpdatesPass, WeightsThatOthersReadStayOut) {
  const TensorMap batch = {{"x", random_tensor(DType::kFloat, {100000}, 8)},
                           {"one", Tensor::scalar(0.5f)},
                           {"count", Tensor::scalar<int64_t>(1)}};
  SessionOptions plain;
  plain.plan.lowering.on = false;
  Session session(make_entangled_model()), expected(make_entangled_model(), plain);
  for (int i = 0; i < 3; ++i) {
    session.run("step", batch);
    expected.run("step", batch);
  }
  const Plan& plan = session.plan("step", {{"x", {100000}}, {"one", {}}, {"count", {}}});
  EXPECT_EQ(count(plan, "Updates"), 1);
  EXPECT_EQ(count(plan, "Sgd"), 2);
  expect_equal_states(session, expected);
}

// loss = mean(x a + b) + c: the gradient of the scalar c is the constant 1, also with a guard.
TEST(MergeUpdatesPass, AScalarWhoseGradientIsAConstantStaysOut) {
  const auto make = [](const std::string& optimizer, const std::string& loss_scale) {
    Model model = empty_model();
    Graph& graph = *model.graph;
    Builder b(&graph);
    const Var x = b.var(graph.add_input("x", {DType::kFloat, Dims{"N", 4}}));
    const auto weight = [&](const char* name, Shape shape) {
      return b.var(
          graph.add_initializer(name, make_parameter(name, random_tensor(DType::kFloat, std::move(shape), 1))));
    };
    const Var h = matmul(x, weight("a", {4, 3})) + weight("b", {3});
    const Var mean = b.op("ReduceMean", {h}, {{"keepdims", 0}});
    b.set_name("loss");
    graph.add_output((mean + weight("c", {})).value());
    BuildOptions options;
    options.loss = "loss";
    options.optimizer = optimizer;
    options.loss_scale = loss_scale;
    build_training_model(&model, options);
    return model;
  };
  SessionOptions single;
  single.plan.lowering.without = {"merge_updates"};
  const TensorMap batch = {{"x", random_tensor(DType::kFloat, {5, 4}, 2)}};
  for (const char* optimizer : {"sgd", "sgd(momentum=0.9)", "adamw"}) {
    for (const char* loss_scale : {"", "dynamic"}) {
      SCOPED_TRACE(concat(optimizer, " ", loss_scale));
      Session merged(make(optimizer, loss_scale)), expected(make(optimizer, loss_scale), single);
      const double before = merged.state().get("c").at(0);
      for (Session* session : {&merged, &expected}) {
        for (int i = 0; i < 2; ++i) session->run("step", batch);
      }
      EXPECT_EQ(count(merged.plan("step", {{"x", {5, 4}}}), "Updates"), 1);
      EXPECT_NE(merged.state().get("c").at(0), before);
      expect_equal_states(merged, expected);
    }
  }
}

}  // namespace
}  // namespace onnx_train::merge_updates_test
