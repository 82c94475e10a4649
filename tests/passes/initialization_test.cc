#include "onnx_passes/training/initialization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/weight_roles.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/session/session.h"
#include "tests/support/golden.h"

namespace onnx_train::initialization_test {
namespace {

BuildOptions options(const std::string& init) {
  BuildOptions options;
  options.init = init;
  options.seed = 7;
  return options;
}

// Stands for the optimizer: every float initializer is trained, with one slot.
Pass train_everything() {
  return {"train_everything", [](Model& model) {
            EntryPoint& step = *model.find_entry_point("step");
            const auto bind = [&](Value* state) {
              Value* next = step.algorithm->add_node("Identity", {state}, {"next/" + state->name()})->output();
              next->set_type(state->type());
              step.algorithm->add_output(next);
              step.update_bindings.push_back({state, next});
            };
            for (Value* weight : model.graph->initializers()) {
              if (!is_float(weight->dtype()) || weight->name().find("running") != std::string::npos) continue;
              bind(weight);
              const std::string slot = "state/" + weight->name() + "/momentum_buffer";
              Value* state = step.algorithm->add_initializer(slot, Tensor(weight->dtype(), weight->type().shape()));
              state->set_role({"momentum_buffer", weight->name()});
              bind(state);
            }
            return true;
          }};
}

TEST(Initialization, Kaiming) {
  const auto o = options("kaiming");
  expect_golden("initialization_kaiming", {training_mode(o), train_everything(), initialization(o)});
}

TEST(Initialization, WithoutARuleWeightsStay) {
  const auto o = options("");
  expect_golden("initialization_of_slots", {training_mode(o), train_everything(), initialization(o)});
}

TEST(Initialization, Gpt2ScalesResidualProjections) {
  const auto o = options("gpt2");
  expect_golden("initialization_gpt2", {training_mode(o), train_everything(), initialization(o)});
}

TEST(Initialization, FansAreCountedAsInTorch) {
  const Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,3] x, float[N,4,8,8] image) => (float[N,5] y, float[N,5] z, float[N,5] t, float[N,6,6,6] c)
    <float[3,5] in_out = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}, float[5,3] out_in = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0},
     float[5,3] turned = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}, float[6,2,1,1] kernel = {0,0,0,0,0,0,0,0,0,0,0,0},
     float[6] bias = {0,0,0,0,0,0}> {
      y = MatMul (x, in_out)
      z = Gemm <transB = 1> (x, out_in)
      w = Transpose <perm = [1, 0]> (turned)
      t = MatMul (x, w)
      c = Conv <group = 2> (image, kernel, bias)
    })");
  for (const char* name : {"in_out", "out_in", "turned"}) {
    const WeightUse use = use_of(*model.graph->find(name));
    EXPECT_EQ(use.role, WeightRole::kLinear) << name;
    EXPECT_EQ(use.fan_in, 3) << name;
    EXPECT_EQ(use.fan_out, 5) << name;
  }
  EXPECT_EQ(use_of(*model.graph->find("kernel")).fan_in, 2);
  EXPECT_EQ(use_of(*model.graph->find("kernel")).fan_out, 6);
  EXPECT_EQ(use_of(*model.graph->find("bias")).role, WeightRole::kBias);
  EXPECT_EQ(use_of(*model.graph->find("bias")).fan_in, 2);
}

constexpr const char* kNetwork = R"(<ir_version: 10, opset_import: ["" : 21]>
    network (float[batch,1,6,6] x) => (float[batch,10] y)
    <float[4,1,3,3] kernel = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0},
     float[4] gamma = {2,2,2,2}, float[4] beta = {2,2,2,2}, float[4] mean = {2,2,2,2}, float[4] variance = {2,2,2,2},
     float[4,10] weight = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0},
     float[10] bias = {0,0,0,0,0,0,0,0,0,0}, float ratio = {0.25}> {
      c = Conv (x, kernel)
      n = BatchNormalization (c, gamma, beta, mean, variance)
      r = Relu (n)
      p = GlobalAveragePool (r)
      f = Flatten (p)
      d = Dropout (f, ratio)
      m = MatMul (d, weight)
      y = Add (m, bias)
    })";

std::vector<double> elements(Session& session, const std::string& state) {
  const Tensor tensor = session.state().get(state);
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.size(); ++i) values.push_back(tensor.at(i));
  return values;
}

TEST(Initialization, TheSeedGivesTheState) {
  Model model = from_text(kNetwork);
  infer_types(model.graph.get());
  BuildOptions build = options("kaiming");
  build_training_model(&model, build);
  Session session(std::move(model));
  session.initialize(1);
  const auto kernel = elements(session, "kernel"), bias = elements(session, "bias");
  for (double w : kernel) EXPECT_LE(std::abs(w), 1.0 / 3);
  EXPECT_GT(*std::max_element(kernel.begin(), kernel.end()), 0.2);
  EXPECT_LT(*std::min_element(kernel.begin(), kernel.end()), -0.2);
  for (double b : bias) EXPECT_LE(std::abs(b), 0.5);
  EXPECT_EQ(elements(session, "gamma"), std::vector<double>(4, 1));
  EXPECT_EQ(elements(session, "variance"), std::vector<double>(4, 1));
  EXPECT_EQ(elements(session, "mean"), std::vector<double>(4, 0));
  EXPECT_EQ(elements(session, "state/random_key"), (std::vector<double>{1, 0}));
  session.initialize(2);
  EXPECT_NE(elements(session, "kernel"), kernel);
  session.initialize(1);
  EXPECT_EQ(elements(session, "kernel"), kernel);
}

TEST(Initialization, WritesTheStateWhereItIs) {
  Model model = from_text(kNetwork);
  infer_types(model.graph.get());
  build_training_model(&model, options("kaiming"));
  Session session(std::move(model));
  session.initialize(1);
  // No second copy of the weights waits in the arena for its time.
  EXPECT_LT(session.arena_bytes(), session.state().bytes());
  for (const StatePort& port : session.plan("initialize", {}).states()) EXPECT_TRUE(port.written) << port.name;
}

TEST(Initialization, UnknownRulesAreRefused) {
  Model model;
  model.add_entry_point("step");
  EXPECT_THROW(initialization(options("magic")).run(model), Error);
}

}  // namespace
}  // namespace onnx_train::initialization_test
