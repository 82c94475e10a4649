// What the rules emit, as text.
#include <gtest/gtest.h>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/model.h"
#include "tests/golden.h"

namespace onnx_train {
namespace {

// Adds the gradients of output y, given the input dy, with respect to x and all float initializers.
bool differentiate(Model& model) {
  Graph* g = model.graph.get();
  std::vector<Value*> values = {g->find("x")};
  for (Value* v : g->initializers()) {
    if (is_float(v->dtype())) values.push_back(v);
  }
  for (Value* gradient : add_gradients(g, {g->find("y")}, {g->find("dy")}, values)) g->add_output(gradient);
  return true;
}

TEST(Gradients, OfALinearLayerAreOneProductEach) {
  expect_golden("linear_gradient", {{"differentiate", differentiate}});
}

TEST(Gradients, OfAConvolutionAreOneFunctionEach) {
  expect_golden("convolution_gradient", {{"differentiate", differentiate}});
}

TEST(Gradients, OfElementwiseOperatorsReadAsTheirFormulas) {
  expect_golden("elementwise_gradient", {{"differentiate", differentiate}});
}

}  // namespace
}  // namespace onnx_train
