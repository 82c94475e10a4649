#include <gtest/gtest.h>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/shared_copy.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train::round_constants_test {
namespace {

Tensor table() {
  Tensor numbers(DType::kFloat, {32, 16});
  for (int64_t i = 0; i < numbers.size(); ++i) numbers.set(i, 1 + 0.001 * static_cast<double>(i));
  return numbers;
}

// A head that shares its table with an embedding, as a frozen language model has.
Model tied(const std::string& type, const std::string& reader) {
  return from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (int64[4] i, bfloat16[4,16] h, float[32,16] w) => ()",
                          type, R"([4,16] z, bfloat16[4,32] logits) {
      narrow = Cast <to = 16> (w)
      turned = Transpose <perm = [1, 0]> (narrow)
      logits = MatMul (h, turned)
      rows = Gather (w, i)
      y = )",
                          reader, R"( (rows)
      z = Neg (y)
    })"));
}

Model with_table(Model model) {
  Graph& graph = *model.graph;
  Value* w = graph.add_initializer("table", table());
  graph.replace(graph.find("w"), w);
  infer_types(&graph);
  return model;
}

const Value& operand_of(const Model& model, const char* op) {
  for (const Node* node : model.graph->nodes()) {
    if (node->is(op)) return *node->input(0);
  }
  fail("no ", op);
}

TEST(RoundConstants, TheTableOfAHeadIsRoundedForItsEmbeddingToo) {
  Model model = with_table(tied("bfloat16", "Cast <to = 16>"));
  EXPECT_TRUE(round_constants(model));
  const Value& rounded = operand_of(model, "Transpose");
  EXPECT_TRUE(rounded.is_initializer());
  EXPECT_EQ(&operand_of(model, "Gather"), &rounded);
  const Tensor numbers = contents_of(rounded), expected = table().cast(DType::kBFloat16);
  for (int64_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(numbers.at(i), expected.at(i));
  EXPECT_FALSE(round_constants(model));
}

TEST(RoundConstants, WhoReadsTheFullNumbersGetsThem) {
  Model model = with_table(tied("float", "Identity"));
  EXPECT_TRUE(round_constants(model));
  EXPECT_EQ(operand_of(model, "Gather").dtype(), DType::kFloat);
  EXPECT_EQ(operand_of(model, "Transpose").dtype(), DType::kBFloat16);
}

// The same model, whose table the file has in `dtype`.
Model with_stored_table(Model model, DType dtype) {
  Graph& graph = *model.graph;
  Value* w = graph.add_initializer("table", Tensor::widened(table().cast(dtype)));
  graph.replace(graph.find("w"), w);
  infer_types(&graph);
  return model;
}

TEST(RoundConstants, WhatTheFileHasInSixteenBitsIsReadThere) {
  Model model = with_stored_table(tied("bfloat16", "Cast <to = 16>"), DType::kBFloat16);
  const Tensor stored = *contents_beside(model.graph->find("table")->shared_initializer())->narrow();
  EXPECT_TRUE(round_constants(model));
  for (const char* op : {"Transpose", "Gather"}) {
    const Tensor read = contents_of(operand_of(model, op));
    EXPECT_EQ(read.data<char>(), stored.data<char>()) << op;
  }
  for (const Node* node : model.graph->nodes()) EXPECT_FALSE(node->is("Cast")) << node->label();
  EXPECT_FALSE(round_constants(model));
}

TEST(RoundConstants, RowsOfATableInSixteenBitsAreWidenedAlone) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Model model = with_stored_table(tied("float", "Identity"), dtype);
    EXPECT_TRUE(round_constants(model));
    EXPECT_EQ(operand_of(model, "Gather").dtype(), dtype);
    EXPECT_EQ(operand_of(model, "Identity").dtype(), DType::kFloat);
    EXPECT_EQ(operand_of(model, "Transpose").dtype(), DType::kBFloat16);
    const Tensor head = contents_of(operand_of(model, "Transpose")),
                 expected = table().cast(dtype).cast(DType::kBFloat16);
    for (int64_t i = 0; i < head.size(); ++i) ASSERT_EQ(head.at(i), expected.at(i));
  }
}

TEST(RoundConstants, PlansShareOneCopyWhileTheyLive) {
  const Tensor source = table();
  const void* address = nullptr;
  {
    const Tensor one = shared_copy(source, DType::kBFloat16), other = shared_copy(source, DType::kBFloat16);
    EXPECT_EQ(one.data<char>(), other.data<char>());
    address = one.data<char>();
    EXPECT_NE(shared_copy(source, DType::kFloat16).data<char>(), address);
  }
  // The copy keeps the numbers that it was made from.
  Tensor copy;
  {
    const Tensor gone = table();
    copy = shared_copy(gone, DType::kBFloat16);
  }
  EXPECT_EQ(copy.at(0), 1);
}

}  // namespace
}  // namespace onnx_train::round_constants_test
