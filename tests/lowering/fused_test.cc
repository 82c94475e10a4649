// The pass fuse_elementwise and the kernel of Fused: with it and without it, the same numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/fused/operations.h"
#include "kernels/host.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/outline.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "runtime/session/session.h"
#include "tests/support/allocations.h"
#include "tests/support/elementwise_graphs.h"
#include "tests/support/run_node.h"

namespace onnx_train::fused_test {
namespace {

bool fuse(Model& model) { return fuse_elementwise(model, cpu::can_fuse); }

// ---- What becomes of a graph

int count_fused(const Model& model) { return count_nodes(model, "Fused", kDomain); }

Model fused(const std::string& text) {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]>\n" + text);
  infer_types(model.graph.get());
  fuse(model);
  return model;
}

TEST(FuseElementwise, LeavesSingleNodesAlone) {
  EXPECT_EQ(count_fused(fused(
                "g (float[2,3] a) => (float[6] y) { b = Neg(a) s = Constant<value_ints=[6]>() y = Reshape(b, s) }")),
            0);
}

TEST(FuseElementwise, LeavesWhatHasNoElementsOrUnknownShapesAlone) {
  EXPECT_EQ(count_fused(fused("g (float[0,3] a) => (float[0,3] y) { b = Neg(a) y = Exp(b) }")), 0);
  EXPECT_EQ(count_fused(fused("g (float[N,3] a) => (float[N,3] y) { b = Neg(a) y = Exp(b) }")), 0);
}

TEST(FuseElementwise, NoPathLeavesAGroupAndComesBack) {
  // y needs p, which needs b: a and b make one group, c and y another.
  const Model model = fused(R"(g (float[4,4] x) => (float[4,4] y) {
    a = Neg(x)
    b = Exp(a)
    p = MatMul(b, b)
    c = Mul(p, a)
    y = Add(c, b)
  })");
  EXPECT_EQ(count_fused(model), 2);
}

TEST(FuseElementwise, ComputesCheapValuesAgainRatherThanKeepingThem) {
  const Model model = fused(R"(g (float[64,64] x, float[64,64] w) => (float[64,64] z)
    <float half = {0.5}> {
    a = Mul(x, half)
    t = Tanh(x)
    y = Mul(a, t)
    p = MatMul(y, w)
    q = Mul(p, a)
    r = Mul(q, t)
    z = Sub(r, x)
  })");
  const Node* first = model.graph->find("y")->producer();
  const Node* second = model.graph->find("z")->producer();
  EXPECT_EQ(first->num_outputs(), 2);  // y, and t, which is not cheap
  EXPECT_EQ(model.graph->find("a"), nullptr);
  EXPECT_EQ(second->num_inputs(), 3);  // p, t, x
}

TEST(FuseElementwise, ComputesSeveralValuesAgain) {
  const Model model = fused(R"(g (float[64,64] x, float[64,64] w) => (float[64,64] z)
    <float half = {0.5}> {
    a = Mul(x, half)
    b = Add(x, half)
    t = Tanh(a)
    y = Mul(t, b)
    p = MatMul(y, w)
    q = Mul(p, a)
    r = Mul(q, b)
    z = Sub(r, x)
  })");
  EXPECT_EQ(count_fused(model), 2);
  EXPECT_EQ(model.graph->find("z")->producer()->num_inputs(), 2);  // p, x
}

// d depends on the bfloat16 x alone, by several nodes, and is read by a group that does not read x otherwise.
TEST(FuseElementwise, ComputesAgainFromNarrowValues) {
  const Model model = fused(R"(g (bfloat16[64,64] x, float[64,64] w) => (float[64,64] y, float[64,64] z) {
    a = Cast <to = 1> (x)
    y = Exp(a)
    d = Mul(a, a)
    e = Abs(d)
    h = Neg(a)
    p = MatMul(y, w)
    q = Mul(p, e)
    r = Add(q, h)
    z = Tanh(r)
  })");
  EXPECT_EQ(count_fused(model), 2);
  const Node* last = model.graph->find("z")->producer();
  ASSERT_TRUE(last->is("Fused", kDomain));
  ASSERT_EQ(last->num_inputs(), 2);
  for (const Value* input : last->inputs()) EXPECT_TRUE(input->name() == "x" || input->name() == "p") << input->name();
}

TEST(FuseElementwise, MergesSmallGroupsThatNoNodeReads) {
  // Of a and b, which have one size; c has another, and a node reads d.
  const Model model = fused(R"(g (float[8] a, float[8] b, float[9] c, float[8] d) =>
      (float[8] next_a, float[8] next_b, float[9] next_c, float[8] next_d, float[8] y) {
    squared_a = Mul(a, a)
    next_a = Neg(squared_a)
    squared_d = Mul(d, d)
    next_d = Neg(squared_d)
    y = Softmax(next_d)
    squared_c = Mul(c, c)
    next_c = Neg(squared_c)
    squared_b = Mul(b, b)
    next_b = Neg(squared_b)
  })");
  EXPECT_EQ(count_fused(model), 3);
}

TEST(FuseElementwise, LargeGroupsThatNoNodeReadsStayApart) {
  const Model model = fused(R"(g (float[100000] a, float[100000] b) => (float[100000] x, float[100000] y) {
    squared_a = Mul(a, a)
    x = Neg(squared_a)
    squared_b = Mul(b, b)
    y = Neg(squared_b)
  })");
  EXPECT_EQ(count_fused(model), 2);
}

TEST(FuseElementwise, BringsAGroupToItsOnlyReader) {
  const Model model = fused(R"(g (float[64,64] x, float[64,64] w) => (float[64,64] z) {
    a = Exp(x)
    b = Tanh(a)
    p = MatMul(x, w)
    q = Relu(p)
    z = Mul(q, b)
  })");
  EXPECT_EQ(count_fused(model), 1);
}

// ---- Every operator against its own kernel

SessionOptions without_fusing() {
  SessionOptions options;
  options.plan.lowering.without = {"fuse_elementwise"};
  return options;
}

// The operator, and a node to fuse it with.
Model two_nodes(const cpu::ElementwiseRow& row, DType dtype) {
  Model model;
  model.context->opsets[""] = 24;
  Builder b(model.graph.get());
  const Var x = b.var(model.graph->add_input("x0", {dtype, Dims{3, 700}}));
  const Var y = apply(b, row, x, [&](DType type, Dims dims) {
    return b.var(model.graph->add_input("x" + std::to_string(model.graph->inputs().size()), {type, std::move(dims)}));
  });
  const Var back = row.op == std::string("Cast") ? cast(y, DType::kFloat) : y;
  model.graph->add_output(back.value());
  model.graph->add_output(b.op("Equal", {back, back}).value());
  return model;
}

TEST(FusedOperators, GiveTheBitsOfTheirKernels) {
  int checked = 0;
  for (const cpu::ElementwiseRow& row : cpu::elementwise_rows()) {
    if (row.op == std::string("CastLike")) continue;  // its second input is no operand
    bool any = false;
    for (DType dtype : {DType::kFloat, DType::kDouble, DType::kInt32, DType::kInt64, DType::kBool}) {
      const Model model = two_nodes(row, dtype);
      if (!cpu::can_fuse(*model.graph->outputs()[1]->producer()->input(0)->producer())) continue;
      const TensorMap inputs = draw_inputs(model);
      std::map<std::string, Shape> shapes;
      for (const auto& [name, tensor] : inputs) shapes[name] = tensor.shape();
      Session fused_session(clone(model)), plain(clone(model), without_fusing());
      ASSERT_EQ(count_fused(fused_session.plan("predict", shapes).model()), 1) << row.op << " of " << name(dtype);
      const TensorMap& got = fused_session.run("predict", inputs);
      for (const auto& [name, tensor] : plain.run("predict", inputs)) {
        EXPECT_TRUE(equal_but_nan(got.at(name), tensor)) << row.op << " of " << onnx_train::name(dtype);
      }
      any = true;
      ++checked;
    }
    EXPECT_TRUE(any) << row.op;
  }
  EXPECT_GT(checked, 100);
}

TEST(Fused, RunsWithoutAllocating) {
  Session session(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[512,40] x, float[40] b) => (float[512,40] y, float[40] s) <int64[1] last = {-1}, int64[1] first = {0}> {
      a = Add(x, b)
      m = ReduceMax(a, last)
      c = Sub(a, m)
      y = Exp(c)
      s = ReduceSum<keepdims = 0>(y, first)
    })"));
  const TensorMap inputs = {{"x", random_tensor(DType::kFloat, {512, 40})}, {"b", random_tensor(DType::kFloat, {40})}};
  session.run("predict", inputs);
  session.run("predict", inputs);
  const size_t before = count_allocations();
  session.run("predict", inputs);
  EXPECT_EQ(count_allocations(), before);
}

// ---- Random graphs

struct Results {
  TensorMap outputs;
  int fused = 0;
};

Results run(Model model, const TensorMap& inputs, bool fuses, int threads) {
  set_num_threads(threads);
  Session session(std::move(model), fuses ? SessionOptions{} : without_fusing());
  Results results;
  for (const auto& [name, tensor] : session.run("predict", inputs)) results.outputs[name] = tensor.clone();
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : inputs) shapes[name] = tensor.shape();
  results.fused = count_fused(session.plan("predict", shapes).model());
  return results;
}

class FusedGraphs : public testing::TestWithParam<DType> {
 protected:
  ~FusedGraphs() override { set_num_threads(threads_); }

 private:
  const int threads_ = num_threads();
};

TEST_P(FusedGraphs, GiveTheSameBitsAsTheirNodes) {
  int fused = 0;
  for (unsigned seed = 0; seed < 250; ++seed) {
    RandomGraph graph(seed, GetParam(), /*with_closed=*/false);
    const Model model = graph.take_model();
    if (model.graph->outputs().empty()) continue;
    const Results plain = run(clone(model), graph.inputs(), false, 1);
    for (int threads : {1, 2, 3}) {
      const Results got = run(clone(model), graph.inputs(), true, threads);
      fused += got.fused;
      for (const auto& [name, tensor] : plain.outputs) {
        ASSERT_TRUE(equal_but_nan(got.outputs.at(name), tensor))
            << "seed " << seed << ", " << threads << " threads, output " << name << ":\n"
            << to_text(model);
      }
    }
  }
  EXPECT_GT(fused, 300);
}

TEST_P(FusedGraphs, SumTheSameWithAnyNumberOfThreads) {
  for (unsigned seed = 1000; seed < 1200; ++seed) {
    RandomGraph graph(seed, GetParam(), /*with_closed=*/true);
    const Model model = graph.take_model();
    if (model.graph->outputs().empty()) continue;
    const Results plain = run(clone(model), graph.inputs(), false, 1);
    const Results one = run(clone(model), graph.inputs(), true, 1);
    for (const auto& [name, tensor] : plain.outputs) {
      bool finite = true;
      for (int64_t i = 0; i < tensor.size(); ++i) finite = finite && std::abs(tensor.at(i)) < 1e30;
      if (finite && is_float(tensor.dtype())) {
        EXPECT_LT(relative_error(one.outputs.at(name), tensor), 1e-6) << "seed " << seed << "\n" << to_text(model);
      }
    }
    for (int threads : {2, 3}) {
      const Results got = run(clone(model), graph.inputs(), true, threads);
      for (const auto& [name, tensor] : one.outputs) {
        ASSERT_TRUE(equal_but_nan(got.outputs.at(name), tensor)) << "seed " << seed << ", output " << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FusedGraphs, testing::Values(DType::kFloat, DType::kDouble));

}  // namespace
}  // namespace onnx_train::fused_test
