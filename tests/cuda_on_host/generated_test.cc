// Generated CUDA kernels compile for GPUs and give the same results as the kernels of their nodes.
#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/nvrtc.h"
#include "kernels/cuda/fused/source.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "runtime/session.h"
#include "tests/support/elementwise_graphs.h"
#include "tests/support/run_node.h"
#include "tests/support/transformer.h"

namespace onnx_train {
namespace {

Session on_cuda(const Model& model, bool fuses = true) {
  SessionOptions options;
  options.device = &cuda_device();
  if (!fuses) options.plan.lowering.without = {"fuse_elementwise"};
  return Session(clone(model), options);
}

// Returns the texts of the generated kernels of a plan's graph.
std::set<std::string> texts_of(const Model& lowered) {
  std::set<std::string> texts;
  for (const Node* node = lowered.graph->first(); node; node = node->next()) {
    if (!node->is("Fused", kDomain)) continue;
    std::vector<Tensor> constants;
    for (const Value* input : node->inputs()) constants.push_back(input ? constant_of(input) : Tensor());
    const NodeSpec spec(*node, std::move(constants), 1);
    texts.insert(cuda::fused_source(spec, *read_body(spec, cuda::can_generate)).text);
  }
  return texts;
}

// Returns a region of all element-wise operators of the type; each is applied to a value that the region computes.
Model all_operators(DType dtype) {
  Model model;
  model.context->opsets[""] = 24;
  Builder b(model.graph.get());
  const Var x0 = b.var(model.graph->add_input("x0", {dtype, Dims{3, 700}}));
  const Var x = b.op(dtype == DType::kBool ? "Not" : "Neg", {x0});
  for (const cpu::ElementwiseRow& row : cpu::elementwise_rows()) {
    if (row.op == std::string("CastLike") || row.op == std::string("Cast")) continue;
    Model trial;
    trial.context->opsets[""] = 24;
    Builder in_trial(trial.graph.get());
    const Var of_trial = in_trial.var(trial.graph->add_input("x", {dtype, Dims{3, 700}}));
    const Var y = apply(in_trial, row, of_trial, [&](DType type, Dims dims) {
      return in_trial.var(trial.graph->add_input(trial.graph->unique_name("x"), {type, std::move(dims)}));
    });
    if (!cuda::can_fuse(*y.value()->producer())) continue;
    const Var result = apply(b, row, x, [&](DType type, Dims dims) {
      return b.var(model.graph->add_input("x" + std::to_string(model.graph->inputs().size()), {type, std::move(dims)}));
    });
    model.graph->add_output(result.value());
  }
  return model;
}

class CudaGenerated : public testing::TestWithParam<DType> {};

TEST_P(CudaGenerated, OperatorsGiveTheBitsOfTheirKernels) {
  const Model model = all_operators(GetParam());
  const TensorMap inputs = draw_inputs(model);
  Session fused = on_cuda(model), plain = on_cuda(model, false);
  EXPECT_FALSE(texts_of(fused.plan("predict", shapes_of(inputs)).model()).empty());
  const TensorMap& got = fused.run("predict", inputs);
  for (const auto& [name, tensor] : plain.run("predict", inputs)) {
    EXPECT_TRUE(equal_but_nan(got.at(name), tensor)) << model.graph->find(name)->producer()->label();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGenerated,
                         testing::Values(DType::kFloat, DType::kDouble, DType::kInt32, DType::kInt64, DType::kBool));

// The regions have rows, several dependent reductions, reductions of other axes, broadcasts and views.
TEST(CudaGeneratedGraphs, GiveTheNumbersOfTheCpu) {
  size_t kernels = 0;
  for (unsigned seed = 0; seed < 16; ++seed) {
    RandomGraph graph(seed, seed % 2 ? DType::kFloat : DType::kDouble, /*with_closed=*/seed % 4 < 2);
    const Model model = graph.take_model();
    if (model.graph->outputs().empty()) continue;
    SessionOptions on_cpu;
    on_cpu.device = &Device::cpu();
    Session session = on_cuda(model), expected(clone(model), on_cpu);
    kernels += texts_of(session.plan("predict", shapes_of(graph.inputs())).model()).size();
    const TensorMap& got = session.run("predict", graph.inputs());
    for (const auto& [name, tensor] : expected.run("predict", graph.inputs())) {
      bool finite = is_float(tensor.dtype());
      for (int64_t i = 0; finite && i < tensor.size(); ++i) finite = std::abs(tensor.at(i)) < 1e30;
      if (!finite) continue;
      EXPECT_LT(relative_error(got.at(name), tensor), 1e-5) << "seed " << seed << ", " << name << to_text(model);
    }
  }
  EXPECT_GT(kernels, 16u);
}

// Values stored in 16 bits are widened and rounded in registers.
Model rounding_region(int64_t columns, bool rows) {
  std::string text = R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[3,N] x, bfloat16[3,N] b, float16[3,N] h) => (bfloat16[3,N] yb, float16[3,N] yh, float[3,N] yf)
      <int64[1] axis = {1}> {
      wide_b = Cast <to = 1> (b)
      wide_h = Cast <to = 1> (h)
      product = Mul (wide_b, x)
      rounded = Cast <to = 16> (product)
      again = Cast <to = 1> (rounded)
      mean = MEAN
      centered = Sub (again, mean)
      yf = Add (centered, wide_h)
      yb = Cast <to = 16> (yf)
      large = Mul (yf, yf)
      yh = Cast <to = 10> (large)
    })";
  text.replace(text.find("MEAN"), 4, rows ? "ReduceMean <keepdims = 1> (again, axis)" : "Abs (wide_h)");
  for (size_t at = 0; (at = text.find(",N]", at)) != std::string::npos;) {
    text.replace(at + 1, 1, std::to_string(columns));
  }
  Model model = from_text(text);
  infer_types(model.graph.get());
  return model;
}

TEST(CudaGeneratedGraphs, RoundToSixteenBitsAsTheirNodesDo) {
  for (const int64_t columns : {704, 700, 7}) {
    for (const bool rows : {true, false}) {
      const Model model = rounding_region(columns, rows);
      TensorMap inputs = draw_inputs(model);
      for (int64_t i = 0; i < inputs.at("x").size(); ++i) inputs.at("x").set(i, inputs.at("x").at(i) * 300);
      Session fused = on_cuda(model), plain = on_cuda(model, false);
      EXPECT_EQ(texts_of(fused.plan("predict", shapes_of(inputs)).model()).size(), 1u);
      const TensorMap& got = fused.run("predict", inputs);
      for (const auto& [name, tensor] : plain.run("predict", inputs)) {
        if (rows) {
          EXPECT_LT(relative_error(got.at(name).cast(DType::kFloat), tensor.cast(DType::kFloat)), 1e-2) << name;
        } else {
          EXPECT_TRUE(equal_but_nan(got.at(name), tensor)) << name << " " << columns;
        }
      }
    }
  }
}

TEST(CudaGeneratedGraphs, CompileForEveryArchitecture) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "libnvrtc is not there";
  std::set<std::string> texts;
  for (DType dtype : {DType::kFloat, DType::kInt64}) {
    const Model model = all_operators(dtype);
    texts.merge(texts_of(on_cuda(model).plan("predict", shapes_of(draw_inputs(model))).model()));
  }
  Session session = on_cuda(make_training_transformer({.blocks = 1, .width = 32, .tokens = 16}));
  texts.merge(texts_of(session.plan("step", {{"tokens", {4, 16}}, {"labels", {4, 16}}}).model()));
  for (const Precision precision : {Precision::kBfloat16, Precision::kFloat16}) {
    Model model = make_transformer({.blocks = 1, .width = 32, .tokens = 16});
    BuildOptions options;
    options.precision = precision;
    build_training_model(&model, options);
    Session narrow = on_cuda(model);
    texts.merge(texts_of(narrow.plan("step", {{"tokens", {4, 16}}, {"labels", {4, 16}}}).model()));
  }
  EXPECT_GE(texts.size(), 12u);
  for (const std::string& text : texts) {
    for (const char* architecture : {"sm_80", "sm_90a", "sm_100"}) {
      EXPECT_GT(cuda::compile_with_nvrtc(text, architecture).size(), 1000u);
    }
  }
}

}  // namespace
}  // namespace onnx_train
