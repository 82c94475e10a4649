#include "onnx_passes/passes/initialization.h"

#include <gtest/gtest.h>

#include <cmath>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/passes/training_mode.h"
#include "onnx_passes/passes/weight_roles.h"
#include "tests/golden.h"

namespace onnx_train {
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
              bind(step.algorithm->add_initializer(slot, Tensor(weight->dtype(), weight->type().shape())));
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

TEST(Initialization, UnknownRulesAreRefused) {
  Model model;
  model.add_entry_point("step");
  EXPECT_THROW(initialization(options("magic")).run(model), Error);
}

}  // namespace
}  // namespace onnx_train
