#include <gtest/gtest.h>

#include <cstring>

#include "kernels/device.h"
#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "tests/support/golden.h"
#include "tests/support/run_node.h"

namespace onnx_train::normalization_test {
namespace {

// Adds the gradients of output y, given the input dy, with respect to x and all initializers.
bool differentiate(Model& model) {
  Graph* g = model.graph.get();
  std::vector<Value*> values = {g->find("x")};
  for (Value* v : g->initializers()) values.push_back(v);
  for (Value* gradient : add_gradients(g, {g->find("y")}, {g->find("dy")}, values)) g->add_output(gradient);
  return true;
}

TEST(Normalization, LayerNormalizationGradient) {
  expect_golden("layer_normalization_gradient", {{"differentiate", differentiate}});
}

// float32 sums must not depend on how many threads there are.
TEST(Normalization, ThreadsDoNotChangeABit) {
  const auto outputs_with = [](int threads, const std::string& op, const std::vector<Tensor>& inputs,
                               const Attrs& attrs) {
    const int before = num_threads();
    set_num_threads(threads);
    const auto outputs = run_node(op, inputs, attrs, 3, kDomain);
    set_num_threads(before);
    return outputs;
  };
  const auto expect_same = [&](const std::string& op, const std::vector<Tensor>& inputs, const Attrs& attrs = {}) {
    const auto one = outputs_with(1, op, inputs, attrs), three = outputs_with(3, op, inputs, attrs);
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(one[i].bytes(), three[i].bytes());
      EXPECT_EQ(std::memcmp(one[i].data(), three[i].data(), one[i].bytes()), 0) << op << ", output " << i;
    }
  };
  const auto draw = [](Shape shape) { return random_tensor(DType::kFloat, std::move(shape)); };
  for (const Shape& shape : {Shape{40, 3, 31, 33}, Shape{9, 64, 20, 20}, Shape{300, 130}, Shape{32, 100, 3, 3}}) {
    const Tensor x = draw(shape), v = random_tensor(DType::kFloat, {shape[1]}, 2);
    const Tensor positive = Tensor::full(DType::kFloat, {shape[1]}, 0.5);
    expect_same("BatchNormalizationTrain", {x, v, v});
    expect_same("BatchNormalizationGrad", {x, v, v, positive, draw(shape)});
    expect_same("GroupNormalizationGrad", {x, v, draw(shape)}, {{"num_groups", shape[1]}});
  }
  expect_same("LayerNormalizationGrad", {draw({400, 300}), draw({300}), draw({400, 300})});
}

// Values far from zero keep their variance.
TEST(Normalization, VariancesDoNotCancel) {
  for (const Shape& shape : {Shape{64, 2, 10, 10}, Shape{6400, 2}}) {
    Tensor x = random_tensor(DType::kFloat, shape);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, 1000 + x.at(i));
    const Tensor ones = Tensor::full(DType::kFloat, {2}, 1), ones_double = ones.cast(DType::kDouble);
    const auto single = run_node("BatchNormalizationTrain", {x, ones, ones}, {}, 3, kDomain);
    const auto exact =
        run_node("BatchNormalizationTrain", {x.cast(DType::kDouble), ones_double, ones_double}, {}, 3, kDomain);
    EXPECT_LT(relative_error(single[1], exact[1]), 1e-6);
    EXPECT_LT(relative_error(single[2], exact[2]), 1e-4);
    EXPECT_LT(relative_error(single[0], exact[0]), 1e-4);
  }
}

}  // namespace
}  // namespace onnx_train::normalization_test
