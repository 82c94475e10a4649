#include <gtest/gtest.h>

#include "onnx_passes/gradients/gradient.h"
#include "tests/golden.h"

namespace onnx_train {
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

}  // namespace
}  // namespace onnx_train
