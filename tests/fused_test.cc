// The pass fuse_elementwise and the kernel of Fused: with it and without it, the same numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/fused/operations.h"
#include "kernels/host.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/outline.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inference.h"
#include "runtime/session.h"
#include "tests/allocations.h"
#include "tests/golden.h"
#include "tests/run_node.h"

namespace onnx_train {
namespace {

bool fuse(Model& model) { return fuse_elementwise(model, cpu::can_fuse); }

// ---- What becomes of a graph

TEST(FuseElementwise, TakesChainsWithTheirViewsAndReductions) {
  expect_golden("fuse_elementwise", {{"fuse_elementwise", fuse}, {"remove_dead_nodes", remove_dead_nodes}});
}

int count_fused(const Model& model) {
  int count = 0;
  for (const Node* node = model.graph->first(); node; node = node->next()) count += node->is("Fused", kDomain);
  return count;
}

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

// Bit for bit, but for the bits of a NaN.
bool equal(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0) return true;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double p = a.at(i), q = b.at(i);
    if (!(p == q && std::signbit(p) == std::signbit(q)) && !(std::isnan(p) && std::isnan(q))) return false;
  }
  return true;
}

// The operator with as many operands as it takes, and a node to fuse it with.
Model two_nodes(const cpu::ElementwiseRow& row, DType dtype) {
  Model model;
  model.context->opsets[""] = 24;
  Builder b(model.graph.get());
  const auto input = [&](const char* name, DType type, Dims dims) {
    return b.var(model.graph->add_input(name, {type, std::move(dims)}));
  };
  std::vector<Var> operands = {input("x0", dtype, {3, 700})};
  Attrs attrs;
  const std::string op = row.op;
  if (op == "Where") {
    operands = {input("x1", DType::kBool, {3, 1}), operands[0], input("x2", dtype, {700})};
  } else if (op == "DropoutGrad") {
    operands.push_back(input("x1", DType::kBool, {3, 700}));
    operands.push_back(b.constant(Tensor::scalar(0.25f)));
  } else if (op == "Clip") {
    operands.push_back(b.scalar(dtype, -0.5));
    operands.push_back(b.scalar(dtype, 0.5));
  } else if (op == "Cast") {
    attrs.emplace_back("to", static_cast<int64_t>(DType::kBFloat16));
  } else if (row.operands == 2) {
    operands.push_back(input("x1", dtype, row.domain == std::string(kDomain) ? Dims{3, 700} : Dims{3, 1}));
  }
  if (op == "Mod" && is_float(dtype)) attrs.emplace_back("fmod", 1);
  if (op == "BitShift") attrs.emplace_back("direction", "LEFT");
  const Var y = row.domain == std::string(kDomain) ? call(b, op, operands, attrs) : b.op(op, operands, attrs);
  const Var back = op == "Cast" ? cast(y, DType::kFloat) : y;
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
      TensorMap inputs;
      for (const Value* input : model.graph->inputs()) {
        Tensor drawn = random_tensor(DType::kDouble, input->type().shape(), input->name()[1]);
        if (!is_float(input->dtype())) {
          for (int64_t i = 0; i < drawn.size(); ++i) drawn.set(i, std::floor(4 * drawn.at(i)));
        }
        inputs[input->name()] = drawn.cast(input->dtype());
      }
      std::map<std::string, Shape> shapes;
      for (const auto& [name, tensor] : inputs) shapes[name] = tensor.shape();
      Session fused_session(clone(model)), plain(clone(model), without_fusing());
      ASSERT_EQ(count_fused(fused_session.plan("predict", shapes).model()), 1) << row.op << " of " << name(dtype);
      const TensorMap& got = fused_session.run("predict", inputs);
      for (const auto& [name, tensor] : plain.run("predict", inputs)) {
        EXPECT_TRUE(equal(got.at(name), tensor)) << row.op << " of " << onnx_train::name(dtype);
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

class RandomGraph {
 public:
  RandomGraph(unsigned seed, DType dtype, bool with_closed) : random_(seed), dtype_(dtype), with_closed_(with_closed) {
    model_.context->opsets[""] = 21;
    const int64_t sizes[] = {1, 2, 3, 5, 8, 17, 64, 130, 600, 1100};
    const int rank = pick(1, 4);
    int64_t elements = 1;
    for (int i = 0; i < rank; ++i) {
      int64_t size = sizes[pick(0, 9)];
      if (elements * size > 200000) size = 2;
      elements *= size;
      space_.push_back(size);
    }
    for (int i = pick(1, 4); i > 0; --i) add_input(i == 1 ? space_ : broadcastable());
    for (int i = pick(2, 25); i > 0; --i) add_node();
    for (Var var : floats_) {
      if (pick(0, 3) == 0) add_output(var);
    }
    add_output(floats_.back());
    for (Var closed : closed_) add_output(closed);
    if (!bools_.empty()) add_output(bools_.back());
  }

  Model take_model() { return std::move(model_); }
  const TensorMap& inputs() const { return inputs_; }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Var any(const std::vector<Var>& from) {
    return from[static_cast<size_t>(
        pick(std::max(0, static_cast<int>(from.size()) - 6), static_cast<int>(from.size()) - 1))];
  }

  // A shape that broadcasts to the space: some axes of size one, some leading ones left out.
  Shape broadcastable() {
    Shape shape(space_.begin() + pick(0, static_cast<int>(space_.size())), space_.end());
    for (int64_t& size : shape) size = pick(0, 2) == 0 ? 1 : size;
    return shape;
  }

  void add_input(const Shape& shape) {
    const std::string name = "x" + std::to_string(inputs_.size());
    Tensor tensor = random_tensor(dtype_, shape, static_cast<unsigned>(pick(1, 1000000)));
    constexpr double kSpecial[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 3e38};
    for (int i = pick(0, 3); i > 0 && tensor.size() > 0; --i) {
      tensor.set(pick(0, static_cast<int>(tensor.size()) - 1), kSpecial[pick(0, 6)]);
    }
    inputs_[name] = tensor;
    Value* value = model_.graph->add_input(name, {dtype_, Dims(shape.begin(), shape.end())});
    floats_.push_back(b_.var(value));
  }

  void add_node() {
    static constexpr const char* kUnary[] = {"Neg",  "Abs",      "Relu",       "Tanh",  "Sigmoid",
                                             "Exp",  "Sqrt",     "Erf",        "Floor", "LeakyRelu",
                                             "Gelu", "Softplus", "Reciprocal", "Sign",  "Clip"};
    static constexpr const char* kBinary[] = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"};
    static constexpr const char* kCompare[] = {"Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"};
    static constexpr const char* kGradients[] = {"TanhGrad", "ReluGrad", "GeluGrad", "SigmoidGrad", "GeluTanhGrad"};
    switch (pick(0, 11)) {
      case 0:
      case 1: return floats_.push_back(b_.op(kUnary[pick(0, 14)], {any(floats_)}));
      case 2:
      case 3:
      case 4: return floats_.push_back(b_.op(kBinary[pick(0, 6)], {any(floats_), any(floats_)}));
      case 5: return bools_.push_back(b_.op(kCompare[pick(0, 4)], {any(floats_), any(floats_)}));
      case 6:
        if (bools_.empty()) return bools_.push_back(b_.op("IsNaN", {any(floats_)}));
        return floats_.push_back(where(any(bools_), any(floats_), any(floats_)));
      case 7: {
        const Var x = any(floats_);
        return floats_.push_back(call(b_, kGradients[pick(0, 4)], {x, b_.op("Neg", {x})}));
      }
      case 8:
      case 10: return add_reduction();
      case 9: return add_movement();
      default: {
        const Var x = any(floats_);
        if (pick(0, 1) == 0) return floats_.push_back(b_.op("Sum", {x, any(floats_), x}));
        return floats_.push_back(x * 0.5 + b_.scalar(dtype_, 1.25));
      }
    }
  }

  void add_reduction() {
    static constexpr const char* kOps[] = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare"};
    const Var x = any(floats_);
    if (x.rank() == 0) return;
    if (!with_closed_) {
      if (x.type().shape().back() == num_elements(x.type().shape())) return;  // may be summed in another order
      return floats_.push_back(b_.op(kOps[pick(0, 4)], {x, b_.ints({-1})}));
    }
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < x.rank(); ++axis) {
      if (pick(0, 1) == 0) axes.push_back(axis);
    }
    closed_.push_back(b_.op(kOps[pick(0, 4)], {x, b_.ints(axes)}, {{"keepdims", pick(0, 1)}}));
  }

  void add_movement() {
    const Var x = any(floats_);
    if (pick(0, 1) == 0) return floats_.push_back(expand(x, b_.ints(space_)));
    const Var flat = reshape(x, std::vector<int64_t>{-1});
    floats_.push_back(reshape(b_.op("Neg", {flat}), b_.ints(x.type().shape())));
  }

  void add_output(Var var) {
    if (model_.graph->is_output(var.value()) || !var.value()->producer()) return;
    model_.graph->add_output(var.value());
  }

  std::mt19937 random_;
  const DType dtype_;
  const bool with_closed_;
  Model model_;
  Builder b_{model_.graph.get()};
  Shape space_;
  std::vector<Var> floats_, bools_, closed_;
  TensorMap inputs_;
};

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
        ASSERT_TRUE(equal(got.outputs.at(name), tensor))
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
        ASSERT_TRUE(equal(got.outputs.at(name), tensor)) << "seed " << seed << ", output " << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FusedGraphs, testing::Values(DType::kFloat, DType::kDouble));

}  // namespace
}  // namespace onnx_train
