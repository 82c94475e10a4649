// The batched products of equal layers' weight gradients: which ones the pass finds, and results compared with the CPU.
#include <gtest/gtest.h>

#include <map>

#include "kernels/cuda/support/device.h"
#include "runtime/session/session.h"
#include "tests/cuda_on_host/runtime.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::weight_gradients_test {
namespace {

constexpr int64_t kRows = 24, kIn = 16, kOut = 20;

struct Layers {
  int count = 4;
  DType type = DType::kFloat;    // operands are rounded to this type
  bool has_bias = true;          // its gradient belongs to the products
  bool transposed = false;       // weights [out, in]
  bool has_one_input = false;    // all layers read the same x
  bool one_after_other = false;  // a layer's operands are computed after the product of the previous layer
  bool reads_gradients = false;  // and depend on it
  bool has_peak = true;          // another node needs more memory than all of these
  int64_t out = kOut;
};

// Element-wise operators compute x [rows, in] and dy [rows, out] of each layer from inputs; the outputs read the
// gradients at the end.
Model model_of(const Layers& layers) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const auto operand = [&](const std::string& name, int64_t columns, Var more) {
    Var value = b.var(model.graph->add_input(name, {DType::kFloat, Dims{kRows, columns}}));
    value = b.op("Sin", {more ? value + more : value});
    return layers.type == DType::kFloat ? value : cast(cast(value, layers.type), DType::kFloat);
  };
  if (layers.has_peak) {
    const Var large = b.var(model.graph->add_input("large", {DType::kFloat, Dims{1 << 16}}));
    model.graph->add_output(reduce_sum(b.op("Sin", {large}), {0}, false).value());
  }
  struct Layer {
    Var x, dy;
  };
  std::vector<Layer> all;
  std::vector<Var> gradients;
  const auto add_operands = [&] {
    const std::string number = std::to_string(all.size());
    const bool again = layers.has_one_input && !all.empty();
    const Var more =
        layers.reads_gradients && !all.empty() ? reduce_sum(gradients.back() * 0.01, {0, 1}, false) : Var();
    all.push_back({again ? all[0].x : operand("x" + number, kIn, {}), operand("dy" + number, layers.out, more)});
  };
  const auto add_gradients = [&](const Layer& layer) {
    const Var x = transpose(layer.x, {1, 0}), dw = matmul(x, layer.dy);
    if (layers.has_bias) gradients.push_back(reduce_sum(layer.dy, {0}, false));
    gradients.push_back(layers.transposed ? transpose(dw, {1, 0}) : dw);
  };
  for (int i = 0; i < layers.count; ++i) {
    add_operands();
    if (layers.one_after_other) add_gradients(all.back());
  }
  if (!layers.one_after_other) {
    for (const Layer& layer : all) add_gradients(layer);
  }
  for (const Var gradient : gradients) model.graph->add_output((gradient * 0.5).value());
  return model;
}

// Returns the number of matrices of each product, in plan order. Expects the CPU's results.
std::vector<int64_t> batches(const Layers& layers) {
  const Model model = model_of(layers);
  Session cpu(clone(model)), cuda(clone(model), on(&cuda_device()));
  TensorMap given;
  unsigned seed = 0;
  for (const Value* input : model.graph->inputs())
    given[input->name()] = random_tensor(DType::kFloat, input->type().shape(), ++seed);
  std::vector<int64_t> found;
  const Plan& plan = cuda.plan("predict", shapes_of(given));
  for (const PlanStep& step : plan.steps()) {
    const Node& node = *step.node;
    const bool is_product = node.op() == "Gemm" || node.op() == "MatMul" || node.op() == "TransposedMatMul";
    if (is_product) found.push_back(node.output()->rank() == 3 ? node.output()->type().shape()[0] : 1);
    EXPECT_FALSE(step.kernel && node.op() == "Concat") << "operands are copied";
  }
  const TensorMap expected = cpu.run("predict", given), actual = cuda.run("predict", given);
  for (const auto& [name, tensor] : expected) EXPECT_LT(relative_error(actual.at(name), tensor), 1e-6) << name;
  return found;
}

using Sizes = std::vector<int64_t>;

TEST(CudaBatchWeightGradients, UpToFourLayersAreOneProductAndGroupsAreEven) {
  EXPECT_EQ(batches({.count = 1}), (Sizes{1}));
  EXPECT_EQ(batches({.count = 2}), (Sizes{2}));
  EXPECT_EQ(batches({.count = 4}), (Sizes{4}));
  EXPECT_EQ(batches({.count = 5}), (Sizes{2, 3}));
  EXPECT_EQ(batches({.count = 12}), (Sizes{4, 4, 4}));
}

TEST(CudaBatchWeightGradients, InEveryFormOfALinearLayer) {
  for (const DType type : {DType::kFloat, DType::kBFloat16, DType::kFloat16}) {
    for (const bool has_bias : {false, true}) {
      for (const bool transposed : {false, true}) {
        SCOPED_TRACE(testing::Message() << name(type) << has_bias << transposed);
        EXPECT_EQ(batches({.type = type, .has_bias = has_bias, .transposed = transposed}), (Sizes{4}));
      }
    }
  }
}

TEST(CudaBatchWeightGradients, TheSumsAreAKernelOfTheirOwnWhereTheLibraryHasNone) {
  gpu_host::let_products_sum_operands(false);
  for (const bool transposed : {false, true}) EXPECT_EQ(batches({.transposed = transposed}), (Sizes{4}));
  gpu_host::let_products_sum_operands(true);
}

TEST(CudaBatchWeightGradients, WhatCannotLieBesideAnotherStaysApart) {
  const Sizes apart = {1, 1, 1};
  EXPECT_EQ(batches({.count = 3, .has_one_input = true}), apart);
  EXPECT_EQ(batches({.count = 3, .one_after_other = true, .reads_gradients = true}), apart);
  EXPECT_EQ(batches({.count = 3, .out = 18}), apart);  // the sums have 72 bytes
}

TEST(CudaBatchWeightGradients, ProductsThatWouldNeedMoreMemoryTogetherStayApart) {
  EXPECT_EQ(batches({.count = 3, .one_after_other = true, .has_peak = false}), (Sizes{1, 1, 1}));
  EXPECT_EQ(batches({.count = 3, .one_after_other = true}), (Sizes{3}));
}

}  // namespace
}  // namespace onnx_train::weight_gradients_test
