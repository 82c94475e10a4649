#include "kernels/lowering/support/outline.h"

#include <gtest/gtest.h>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train::outline_test {
namespace {

constexpr const char* kText = R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,3] a, float[3] b) => (float[2,3] y, float[2,3] z)
    <float two = {2.0}>
    {
      s = Add (a, b)
      early = Neg (s)
      t = Mul (s, two)
      y = Relu (t)
      z = Add (early, y)
    })";

Node* producer(const Model& model, const char* name) { return model.graph->find(name)->producer(); }

TEST(Outline, TheCallStandsForItsNodesAndCanBeTakenBack) {
  Model model = from_text(kText);
  infer_types(model.graph.get());
  Node* call = outline({producer(model, "s"), producer(model, "t"), producer(model, "y")}, "Group");
  EXPECT_EQ(call->num_inputs(), 2);  // the scalar went into the body
  ASSERT_EQ(call->num_outputs(), 2);
  EXPECT_EQ(call->output(0)->name(), "s");
  EXPECT_EQ(call->output(1)->name(), "y");
  EXPECT_EQ(to_string(call->output(1)->type()), to_string(model.graph->find("z")->type()));
  ASSERT_NE(function_of(*call), nullptr);
  EXPECT_EQ(function_of(*call)->node_size(), 4);
  // "early" read the group's first value: it stands behind the call now.
  EXPECT_EQ(call->next()->op(), "Neg");
  onnx::ModelProto proto;
  to_proto(model, &proto);
  check_proto(proto);
  ASSERT_TRUE(inline_function(call));
  EXPECT_EQ(producer(model, "y")->op(), "Relu");
}

TEST(Outline, RefusesAGroupWithAStrangerBetween) {
  Model model = from_text(kText);
  infer_types(model.graph.get());
  EXPECT_THROW(outline({producer(model, "s"), producer(model, "z")}, "Group"), Error);
}

TEST(Outline, EveryGroupHasAFunctionOfItsOwn) {
  Model model = from_text(kText);
  infer_types(model.graph.get());
  const Node* first = outline({producer(model, "s")}, "Group");
  const Node* second = outline({producer(model, "t"), producer(model, "y")}, "Group");
  EXPECT_NE(function_of(*first), function_of(*second));
}

}  // namespace
}  // namespace onnx_train::outline_test
