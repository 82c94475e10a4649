#include "onnx_passes/ir/tables.h"

#include <gtest/gtest.h>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inference_cache.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "tests/support/transformer.h"

namespace onnx_train::tables_test {
namespace {

constexpr const char* kModel = R"(
<ir_version: 10, opset_import: ["" : 21]>
g (float[2] x) => (float[2] d) {
  a = Relu(x)
  b = Neg(a)
  c = Abs(b)
  d = Exp(c)
}
)";

std::string order(const Graph& graph) {
  std::string ops, backwards;
  for (const Node* node = graph.first(); node; node = node->next()) ops += node->op() + " ";
  for (const Node* node = graph.last(); node; node = node->previous()) backwards = node->op() + " " + backwards;
  EXPECT_EQ(ops, backwards);
  EXPECT_EQ(graph.nodes().size(), graph.num_nodes());
  return ops;
}

TEST(Graph, NodesAreMovedToAnyPlace) {
  Model model = from_text(kModel);
  Graph& g = *model.graph;
  Node* const relu = g.first();
  Node* const exp = g.last();
  g.move(exp, relu);
  EXPECT_EQ(order(g), "Exp Relu Neg Abs ");
  g.move(exp, nullptr);
  EXPECT_EQ(order(g), "Relu Neg Abs Exp ");
  g.move(relu, exp);
  EXPECT_EQ(order(g), "Neg Abs Relu Exp ");
  g.move(relu, relu);
  g.move(relu, exp);
  EXPECT_EQ(order(g), "Neg Abs Relu Exp ");
  g.move(relu, g.first());
  g.move(exp, nullptr);
  EXPECT_EQ(order(g), "Relu Neg Abs Exp ");
}

TEST(Graph, NodesAreRemovedAtBothEnds) {
  Model model = from_text(kModel);
  Graph& g = *model.graph;
  g.set_outputs({g.find("x")});
  while (g.last()) g.remove(g.last());
  EXPECT_EQ(order(g), "");
  g.add_node("Relu", {g.find("x")}, {"a"});
  g.add_node("Neg", {g.find("x")}, {"b"}, "", g.first());
  EXPECT_EQ(order(g), "Neg Relu ");
  EXPECT_FALSE(g.is_output(g.find("a")));
  EXPECT_TRUE(g.is_output(g.find("x")));
}

TEST(Graph, OperatorsChangeInTheMessageToo) {
  Model model = from_text(kModel);
  model.graph->first()->set_op("Gelu", kDomain);
  EXPECT_TRUE(model.graph->first()->is("Gelu", kDomain));
  EXPECT_FALSE(model.graph->first()->is("Gelu"));
  EXPECT_EQ(model.graph->first()->shell().op_type(), "Gelu");
  EXPECT_EQ(model.graph->first()->shell().domain(), kDomain);
}

TEST(Tables, AnEntryForEachKeyThatWasSet) {
  Model model = from_text(kModel);
  const Node* first = model.graph->first();
  const Node* last = model.graph->last();
  NodeTable<int> table;
  EXPECT_EQ(table.find(last), nullptr);
  EXPECT_EQ(table[last], 0);
  table[last] = 3;
  EXPECT_EQ(table.at(last), 3);
  EXPECT_FALSE(table.contains(first));
  EXPECT_THROW(table.at(first), std::out_of_range);
  EXPECT_TRUE(table.try_emplace(first, 5).second);
  EXPECT_FALSE(table.try_emplace(first, 6).second);
  EXPECT_EQ(table.at(first), 5);
  table.erase(last);
  EXPECT_FALSE(table.contains(last));
}

TEST(Tables, MarksAreASet) {
  Model model = from_text(kModel);
  Marks<Value> marks(model.graph->outputs());
  EXPECT_TRUE(marks.contains(model.graph->find("d")));
  EXPECT_FALSE(marks.contains(model.graph->find("a")));
  EXPECT_TRUE(marks.insert(model.graph->find("a")));
  EXPECT_FALSE(marks.insert(model.graph->find("a")));
  marks.erase(model.graph->find("d"));
  EXPECT_FALSE(marks.contains(model.graph->find("d")));
}

// The types of a training step that was inferred node by node, through a cache or not.
std::vector<std::string> types_of(bool cached, int64_t batch) {
  Model step = flatten(make_training_transformer({.blocks = 3}), "step");
  for (Value* input : step.graph->inputs()) {
    if (input->name() == "tokens" || input->name() == "labels") input->set_type({input->dtype(), Dims{batch, 4}});
  }
  InferenceCache cache;
  std::vector<std::string> types;
  for (Node* node = step.graph->first(); node; node = node->next()) {
    for (Value* output : node->outputs()) {
      if (output) output->set_type({output->dtype(), std::nullopt});
    }
    cached ? cache.infer(node) : infer_types(node);
    for (const Value* output : node->outputs()) {
      if (!output) continue;
      types.push_back(output->name() + " " + to_string(output->type()));
      if (output->elements()) types.back() += " = " + to_string(TensorType{output->dtype(), output->elements()});
    }
  }
  return types;
}

TEST(InferenceCache, GivesWhatInferenceGives) {
  EXPECT_EQ(types_of(true, 2), types_of(false, 2));
  EXPECT_NE(types_of(true, 2), types_of(true, 3));
}

// Nodes that differ only in what a constant input holds.
TEST(InferenceCache, LooksIntoConstants) {
  Model model = from_text(R"(
<ir_version: 10, opset_import: ["" : 21]>
g (float[6] x) => (float[A,B] y, float[C,D] z)
<int64[2] one = {2, 3}, int64[2] other = {3, 2}>
{
  y = Reshape(x, one)
  z = Reshape(x, other)
}
)");
  InferenceCache cache;
  for (Node* node = model.graph->first(); node; node = node->next()) cache.infer(node);
  EXPECT_EQ(to_string(model.graph->find("y")->type()), "float[2,3]");
  EXPECT_EQ(to_string(model.graph->find("z")->type()), "float[3,2]");
}

TEST(InferenceCache, LooksAtAttributes) {
  Model model = from_text(R"(
<ir_version: 10, opset_import: ["" : 21]>
g (float[6, 2] x) => (float[A, B] y, float[C, D] z)
{
  y = Concat <axis = 0> (x, x)
  z = Concat <axis = 1> (x, x)
}
)");
  InferenceCache cache;
  for (Node* node = model.graph->first(); node; node = node->next()) cache.infer(node);
  EXPECT_EQ(to_string(model.graph->find("y")->type()), "float[12,2]");
  EXPECT_EQ(to_string(model.graph->find("z")->type()), "float[6,4]");
}

}  // namespace
}  // namespace onnx_train::tables_test
