#include "kernels/cost.h"

#include <gtest/gtest.h>

#include "kernels/functions/functions.h"
#include "kernels/lowering/support/outline.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "tests/support/empty_model.h"

namespace onnx_train::cost_test {
namespace {

// The cost of the last node of a graph in ONNX's text form.
NodeCost cost(const std::string& inputs, const std::string& nodes) {
  const Model model =
      from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (" + inputs + ") => (float[] y) {" + nodes + "}");
  infer_types(model.graph.get());
  return cost_of(*model.graph->last());
}

double flops(const std::string& inputs, const std::string& nodes) { return cost(inputs, nodes).total_flops(); }

TEST(Cost, CountsTwoForEachMultiplyAdd) {
  EXPECT_EQ(flops("float[4, 7] a, float[7, 5] b", "y = MatMul(a, b)"), 2 * 4 * 7 * 5);
  EXPECT_EQ(flops("float[3, 4, 7] a, float[7, 5] b", "y = MatMul(a, b)"), 2 * 3 * 4 * 7 * 5);
  EXPECT_EQ(flops("float[7, 4] a, float[5, 7] b", "y = Gemm<transA = 1, transB = 1>(a, b)"), 2 * 4 * 7 * 5);
  EXPECT_EQ(flops("float[3, 4, 7] a, float[3, 7, 5] b", "y = Einsum<equation = \"bij, bjk -> bik\">(a, b)"),
            2 * 3 * 4 * 7 * 5);
  EXPECT_EQ(flops("float[2, 3, 4, 7] a, float[2, 3, 7, 5] b", "y = Einsum<equation = \"...ij,...jk->...ik\">(a, b)"),
            2 * 2 * 3 * 4 * 7 * 5);
  EXPECT_EQ(flops("float[4, 7] a", "y = Einsum<equation = \"ij->ji\">(a)"), 0);
  EXPECT_EQ(flops("float[4, 7] a", "y = Relu(a)"), 0);
}

TEST(Cost, CountsConvolutions) {
  // 2 images of 3 -> 8 channels, 5 x 5 filters: outputs of 12 x 12; each needs 3 * 25.
  EXPECT_EQ(flops("float[2, 3, 16, 16] x, float[8, 3, 5, 5] w", "y = Conv(x, w)"), 2.0 * 2 * 8 * 144 * 75);
  EXPECT_EQ(flops("float[2, 4, 16, 16] x, float[4, 1, 3, 3] w", "y = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w)"),
            2.0 * 2 * 4 * 256 * 9);
  // Every input element meets 8 * 25 weights.
  EXPECT_EQ(flops("float[2, 3, 16, 16] x, float[3, 8, 5, 5] w", "y = ConvTranspose<strides = [2, 2]>(x, w)"),
            2.0 * 2 * 3 * 256 * 200);
}

TEST(Cost, CountsRecurrentNetworks) {
  // 6 steps of a batch of 4, 10 wide; 4 gates of 8.
  EXPECT_EQ(flops("float[6, 4, 10] x, float[1, 32, 10] w, float[1, 32, 8] r", "y = LSTM<hidden_size = 8>(x, w, r)"),
            2.0 * 6 * 4 * 32 * (10 + 8));
}

TEST(Cost, CountsByElementType) {
  const NodeCost half = cost("bfloat16[4, 7] a, bfloat16[7, 5] b", "y = MatMul(a, b)");
  ASSERT_EQ(half.flops.size(), 1u);
  EXPECT_EQ(half.flops.at(DType::kBFloat16), 2 * 4 * 7 * 5);
  EXPECT_EQ(half.bytes, 2 * (4 * 7 + 7 * 5 + 4 * 5));
}

TEST(Cost, BytesAreThoseThatMove) {
  EXPECT_EQ(cost("float[4, 7] a, float[7] b", "y = Add(a, b)").bytes, 4 * (28 + 7 + 28));
  EXPECT_EQ(cost("float[4, 7] a", "s = Constant<value_ints = [28]>() y = Reshape(a, s)").bytes, 0);
  // Three rows of a thousand, read and written; and the indices.
  EXPECT_EQ(cost("float[1000, 16] t, int64[3] i", "y = Gather(t, i)").bytes, 2 * 4 * 3 * 16 + 8 * 3);
  // Three rows are subtracted from as many of a thousand.
  Model model = empty_model();
  Builder b(model.graph.get());
  const auto input = [&](const char* name, DType dtype, const Dims& dims) {
    return b.var(model.graph->add_input(name, {dtype, dims}));
  };
  const Var t = input("t", DType::kFloat, {1000, 16}), rows = input("rows", DType::kFloat, {3, 16});
  const Var places = input("places", DType::kInt64, {3}), rate = input("rate", DType::kFloat, Dims{});
  const Var next = call_lowered(b, "SparseSgd", {t, rows, places, rate, rate});
  EXPECT_EQ(cost_of(*next.value()->producer()).bytes, 3 * 4 * 3 * 16 + 8 * 3);
  // The same of three tensors: a table and its moments.
  const Var step = input("step", DType::kInt64, Dims{});
  const Attrs attrs = {
      {"beta1", Tensor::scalar(0.9)}, {"beta2", Tensor::scalar(0.9)}, {"epsilon", Tensor::scalar(0.1)}};
  const auto all = call_lowered(b, "SparseAdamRows", 3, {t, rows, places, t, t, step, rate, rate}, attrs);
  EXPECT_EQ(cost_of(*all[0].value()->producer()).bytes, 7 * 4 * 3 * 16 + 8 * 3);
}

TEST(Cost, UnknownSizesCountAsOne) { EXPECT_EQ(flops("float[N, 7] a, float[7, 5] b", "y = MatMul(a, b)"), 2 * 7 * 5); }

TEST(Cost, OurFunctionsCountAsTheProductsTheyAre) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto input = [&](const char* name, Dims dims) {
    return b.var(graph.add_input(name, {DType::kFloat, std::move(dims)}));
  };
  const auto count = [](const Var& v) { return cost_of(*v.value()->producer()).total_flops(); };
  const Var x = input("x", {2, 3, 16, 16}), w = input("w", {8, 3, 5, 5}), dy = input("dy", {2, 8, 6, 6});
  const Attrs window{{"strides", std::vector<int64_t>{2, 2}},
                     {"dilations", std::vector<int64_t>{1, 1}},
                     {"pads", std::vector<int64_t>{0, 0, 0, 0}}};
  const double forward = 2.0 * 2 * 8 * 36 * 75;
  EXPECT_EQ(count(call(b, "ConvGradInput", {dy, w, b.ints({2, 3, 16, 16})}, window)), forward);
  EXPECT_EQ(count(call(b, "ConvGradWeight", 2, {x, dy, b.ints({8, 3, 5, 5})}, window)[0]), forward);

  const Var a = input("a", {4, 2, 7}), c = input("c", {4, 7, 5});
  const Attrs perms{{"perm_a", std::vector<int64_t>{0, 1, 2}},
                    {"perm_b", std::vector<int64_t>{0, 1, 2}},
                    {"perm_y", std::vector<int64_t>{0, 2, 1}}};
  EXPECT_EQ(count(call_lowered(b, "TransposedMatMul", {a, c}, perms)), 2 * 4 * 2 * 7 * 5);
  EXPECT_EQ(count(call(b, "ReluGrad", {a, a})), 0);
}

TEST(Cost, AnOutlinedCallCountsItsBody) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21, "onnx_train" : 1]>
      g (float[4, 7] a, float[7, 5] b, float[5] c) => (float[4, 5] y) {
        product = MatMul(a, b)
        sum = Add(product, c)
        y = Relu(sum)
      })");
  infer_types(model.graph.get());
  const Node* node = outline(model.graph->nodes(), "Fused");
  const NodeCost fused = cost_of(*node);
  EXPECT_EQ(fused.total_flops(), 2 * 4 * 7 * 5);
  EXPECT_EQ(fused.bytes, 4 * (28 + 35 + 5 + 20));
}

TEST(Cost, ProductsOfNarrowOperandsCountAsBfloat16ThoughTheirBodyWidensThem) {
  const Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21, "onnx_train" : 1]>
      g (bfloat16[4, 7] a, bfloat16[7, 5] b) => (float[4, 5] y) { y = onnx_train.MatMul(a, b) }
      <domain: "onnx_train", opset_import: ["" : 21]> MatMul (a, b) => (y) {
        wide_a = Cast<to = 1>(a)
        wide_b = Cast<to = 1>(b)
        y = MatMul(wide_a, wide_b)
      })");
  infer_types(model.graph.get());
  const NodeCost narrow = cost_of(*model.graph->first());
  ASSERT_EQ(narrow.flops.size(), 1u);
  EXPECT_EQ(narrow.flops.at(DType::kBFloat16), 2 * 4 * 7 * 5);
}

TEST(Cost, ALoopCountsItsBodyAsOftenAsItRuns) {
  EXPECT_EQ(flops("float[4, 4] s, float[6, 4, 4] x", R"(
      last, y = Scan <num_scan_inputs = 1, body = step (float[4, 4] state, float[4, 4] x_t)
                      => (float[4, 4] next, float[4, 4] y_t) {
                  next = MatMul(state, x_t)
                  y_t = Identity(next)
                }> (s, x))"),
            6.0 * 2 * 4 * 4 * 4);
}

}  // namespace
}  // namespace onnx_train::cost_test
