#include "onnx_passes/recognize/recognize.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::recognize_test {
namespace {

// A spelling of an operator: a graph body from x [3, 4, 6] to y with the constants below, where TYPE is float or
// double; what it is recognized as. s and b are weights.
struct Spelling {
  const char* op;
  const char* body;
  double low = -4, high = 4;
  int opset = 21;
};

void PrintTo(const Spelling& spelling, std::ostream* out) { *out << spelling.body; }

// What becomes an attribute (alpha, eps) is a float32 number: in float64, too, recognized without rounding.
constexpr const char* kConstants = R"(
  <TYPE half = {0.5}, TYPE one = {1.0}, TYPE two = {2.0}, TYPE three = {3.0}, TYPE[1] third = {0.044715}, TYPE fourth = {0.25},
   TYPE six = {6.0}, TYPE zero = {0.0}, TYPE minus = {-1.0}, TYPE root2 = {1.4142135623730951},
   TYPE root_half = {0.7071067811865476}, TYPE k = {0.7978845608028654}, TYPE eps = {0.0000152587890625}, TYPE alpha = {1.75},
   TYPE minus_half = {-0.5}, int64[1] last = {-1}, int64[2] last2 = {1, 2}, int64[1] middle = {1},
   int64[3] grouped = {0, 2, -1}, int64[3] whole = {0, 4, 6}, TYPE[2] ones = {1, 1}, TYPE[2] zeros = {0, 0},
   TYPE[4, 1] channel_s = {0.5, 1.5, -1.0, 2.0}, TYPE[4, 1] channel_b = {0.1, -0.2, 0.3, 0.5},
   TYPE[6] s = {0.5, 1.0, 1.5, 2.0, -1.0, 0.25}, TYPE[6] b = {0.1, -0.2, 0.3, 0.0, 1.0, -1.0}>)";

const Spelling kSpellings[] = {
    // Gelu
    {"Gelu", "u = Div (x, root2) e = Erf (u) f = Add (e, one) g = Mul (x, f) y = Mul (g, half)"},
    {"Gelu", "u = Div (x, root2) e = Erf (u) f = Add (one, e) g = Mul (half, f) y = Mul (x, g)"},
    {"Gelu", "h = Mul (half, x) u = Mul (root_half, x) e = Erf (u) f = Add (e, one) y = Mul (f, h)"},
    {"Gelu", "h = Div (x, two) u = Mul (x, root_half) e = Erf (u) f = Add (one, e) y = Mul (h, f)"},
    {"Gelu", "r = Sqrt (two) u = Div (x, r) e = Erf (u) f = Sub (e, minus) g = Mul (f, x) y = Div (g, two)"},
    {"Gelu", "u = Mul (x, root_half) e = Erf (u) h = Mul (e, half) f = Add (h, half) y = Mul (x, f)"},
    {"Gelu",
     "p = Pow (x, three) q = Mul (third, p) r = Add (x, q) u = Mul (k, r) t = Tanh (u) f = Add (one, t) "
     "h = Mul (half, x) y = Mul (h, f)"},
    {"Gelu",
     "p = Mul (x, x) pp = Mul (p, x) q = Mul (pp, third) r = Add (q, x) u = Mul (r, k) t = Tanh (u) "
     "f = Add (t, one) h = Mul (f, x) y = Mul (half, h)"},
    {"Gelu",
     "p = Mul (x, x) q = Mul (p, third) o = Add (q, one) v = Mul (x, k) u = Mul (v, o) t = Tanh (u) "
     "f = Add (t, one) h = Mul (f, half) y = Mul (x, h)"},
    // other activations
    {"HardSwish", "a = Add (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six)"},
    {"HardSwish", "a = Add (three, x) c = Clip (a, zero, six) m = Div (c, six) y = Mul (m, x)"},
    {"HardSwish", "d = Div (x, six) a = Add (d, half) c = Clip (a, zero, one) y = Mul (c, x)"},
    {"HardSigmoid", "d = Mul (x, fourth) a = Add (half, d) y = Clip (a, zero, one)"},
    {"Mish", "p = Softplus (x) t = Tanh (p) y = Mul (x, t)"},
    {"Mish", "e = Exp (x) o = Add (e, one) p = Log (o) t = Tanh (p) y = Mul (t, x)"},
    {"Softplus", "e = Exp (x) o = Add (one, e) y = Log (o)"},
    {"Sigmoid", "n = Neg (x) e = Exp (n) o = Add (one, e) y = Div (one, o)"},
    {"Sigmoid", "n = Mul (x, minus) e = Exp (n) o = Add (one, e) y = Reciprocal (o)"},
    {"Swish", "a = Mul (alpha, x) g = Sigmoid (a) y = Mul (x, g)", -4, 4, 24},
    {"Swish", "a = Mul (alpha, x) g = Sigmoid (a) y = Mul (x, g)"},
    {"Swish", "g = Sigmoid (x) y = Mul (g, x)"},
    {"Swish", "g = Sigmoid (x) y = Mul (g, x)", -4, 4, 24},
    {"Softmax", "h = ReduceMax (x, last) d = Sub (x, h) e = Exp (d) t = ReduceSum (e, last) y = Div (e, t)"},
    {"Softmax",
     "h = ReduceMax (x, middle) d = Sub (x, h) e = Exp (d) t = ReduceSum (e, middle) r = Reciprocal (t) "
     "y = Mul (e, r)"},
    {"LogSoftmax",
     "h = ReduceMax (x, last) d = Sub (x, h) e = Exp (d) t = ReduceSum (e, last) l = Log (t) "
     "y = Sub (d, l)"},
    {"LogSoftmax",
     "h = ReduceMax (x, last) d = Sub (x, h) e = Exp (d) t = ReduceSum (e, last) l = Log (t) "
     "w = Add (l, h) y = Sub (x, w)"},
    {"LogSoftmax", "l = ReduceLogSumExp (x, middle) y = Sub (x, l)"},
    // normalization
    {"LayerNormalization",
     "m = ReduceMean (x, last) d = Sub (x, m) p = Pow (d, two) v = ReduceMean (p, last) "
     "w = Add (v, eps) r = Sqrt (w) n = Div (d, r) g = Mul (n, s) y = Add (g, b)"},
    {"LayerNormalization",
     "m = ReduceMean (x, last) d = Sub (x, m) dd = Sub (x, m) p = Mul (dd, dd) "
     "v = ReduceMean (p, last) w = Add (eps, v) r = Sqrt (w) i = Reciprocal (r) n = Mul (d, i) "
     "g = Mul (s, n) y = Add (b, g)"},
    {"LayerNormalization",
     "m = ReduceMean (x, last) d = Sub (x, m) p = Pow (d, two) v = ReduceMean (p, last) "
     "w = Add (v, eps) r = Pow (w, minus_half) i = Mul (r, s) n = Mul (d, i) y = Add (n, b)"},
    {"LayerNormalization",
     "m = ReduceMean (x, last) d = Sub (x, m) c = Cast <to = CODE> (d) p = Pow (c, two) "
     "v = ReduceMean (p, last) w = Add (v, eps) r = Sqrt (w) n = Div (d, r) y = Mul (n, s)"},
    {"RMSNormalization",
     "p = Mul (x, x) v = ReduceMean (p, last) w = Add (v, eps) r = Sqrt (w) i = Div (one, r) "
     "n = Mul (x, i) y = Mul (s, n)",
     -4, 4, 23},
    {"LayerNormalization",
     "m = ReduceMean (x, last) d = Sub (x, m) p = Pow (d, two) v = ReduceMean (p, last) "
     "w = Add (v, eps) r = Sqrt (w) y = Div (d, r)"},
    {"LayerNormalization",
     "m = ReduceMean (x, last2) d = Sub (x, m) p = Pow (d, two) v = ReduceMean (p, last2) "
     "w = Add (v, eps) r = Sqrt (w) i = Reciprocal (r) y = Mul (d, i)"},
    {"RMSNormalization", "p = Mul (x, x) v = ReduceMean (p, last) w = Add (v, eps) r = Sqrt (w) y = Div (x, r)"},
    {"RMSNormalization",
     "p = Pow (x, two) v = ReduceMean (p, last) w = Add (v, eps) r = Sqrt (w) i = Reciprocal (r) "
     "n = Mul (x, i) y = Mul (s, n)"},
    {"GroupNormalization",
     "g = Reshape (x, grouped) n = InstanceNormalization <epsilon = 0.001> (g, ones, zeros) h = Reshape (n, whole) "
     "m = Mul (h, channel_s) y = Add (m, channel_b)"},
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at))
    text.replace(at, from.size(), to);
  return text;
}

Model make_model(const Spelling& spelling, DType dtype) {
  std::string text = concat("<ir_version: 10, opset_import: [\"\" : ", spelling.opset,
                            "]> g (TYPE[N,4,6] x) => (TYPE[N,4,6] y)", kConstants, "{", spelling.body, "}");
  text = replaced(text, "TYPE", dtype == DType::kFloat ? "float" : "double");
  Model model = from_text(replaced(text, "CODE", std::to_string(static_cast<int>(dtype))));
  infer_types(model.graph.get());
  mark_constants(&model);
  return model;
}

Tensor uniform(DType dtype, Shape shape, const Spelling& spelling) {
  Tensor x = random_tensor(dtype, std::move(shape));
  for (int64_t i = 0; i < x.size(); ++i) {
    x.set(i, spelling.low + (spelling.high - spelling.low) * (x.at(i) + 1) / 2);
  }
  return x;
}

class Recognize : public testing::TestWithParam<Spelling> {};

TEST_P(Recognize, OneNodeWithTheSameNumbers) {
  for (DType dtype : {DType::kFloat, DType::kDouble}) {
    Model model = make_model(GetParam(), dtype);
    Model original = clone(model);
    ASSERT_TRUE(recognize({}).run(model)) << GetParam().body;
    simplify(model);  // a constant that was computed is nobody's now
    for (const Node* node : model.graph->nodes()) {
      // Beside it, only what gives its weights their shapes.
      const bool is_shape = node->is("Reshape") || node->is("Expand");
      EXPECT_TRUE(node->output()->name() == "y" ? node->op() == GetParam().op : is_shape) << to_text(model);
    }
    EXPECT_FALSE(recognize({}).run(model));
    const Tensor x = uniform(dtype, {3, 4, 6}, GetParam());
    Session expected(std::move(original)), session(std::move(model));
    const Tensor y = expected.run("predict", {{"x", x}}).at("y");
    EXPECT_LT(relative_error(session.run("predict", {{"x", x}}).at("y"), y), dtype == DType::kFloat ? 1e-6 : 1e-12)
        << GetParam().body;
  }
}

// One step of plain descent from the same weights, with and without recognition.
TEST_P(Recognize, TrainsTheSame) {
  const auto trained = [&](bool recognized) {
    Model model = make_model(GetParam(), DType::kDouble);
    Builder b(model.graph.get());
    Graph& graph = *model.graph;
    graph.set_outputs({});
    const Var w = b.var(graph.add_initializer("weight", random_tensor(DType::kDouble, {6, 2}, 7)));
    graph.add_output((sum_all(matmul(b.var(graph.find("y")), w) * matmul(b.var(graph.find("y")), w))).value());
    BuildOptions options;
    options.loss = graph.outputs()[0]->name();
    options.optimizer = "sgd";
    for (const Pass& pass : training_passes(options)) {
      if (recognized || pass.name != "recognize") pass.run(model);
    }
    return model;
  };
  Model model = trained(true);
  const std::vector<Node*> nodes = model.graph->nodes();
  EXPECT_TRUE(std::any_of(nodes.begin(), nodes.end(), [](const Node* n) { return n->op() == GetParam().op; }));
  Session with(std::move(model)), without(trained(false));
  const Tensor x = uniform(DType::kDouble, {3, 4, 6}, GetParam());
  with.run("step", {{"x", x}});
  without.run("step", {{"x", x}});
  for (const std::string& name : without.state().names()) {
    EXPECT_LT(relative_error(with.state().get(name), without.state().get(name)), 1e-11) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Spellings, Recognize, testing::ValuesIn(kSpellings),
                         [](const auto& row) { return concat(row.param.op, "_", row.index); });

// Gelu with something that is not quite Gelu.
bool is_recognized(const char* body, const BuildOptions& options = {}) {
  Model model = make_model({"", body}, DType::kFloat);
  return recognize(options).run(model);
}

TEST(RecognizePass, LeavesWhatIsSomethingElse) {
  EXPECT_FALSE(is_recognized("y = Relu (x)"));
  constexpr const char* kGelu = "u = Div (x, root2) e = Erf (u) f = Add (e, one) g = Mul (x, f) y = Mul (g, half)";
  EXPECT_TRUE(is_recognized(kGelu));
  EXPECT_FALSE(is_recognized("u = Div (x, two) e = Erf (u) f = Add (e, one) g = Mul (x, f) y = Mul (g, half)"));
  EXPECT_FALSE(is_recognized("u = Div (x, root2) e = Erf (u) f = Add (e, one) g = Mul (u, f) y = Mul (g, half)"));
  EXPECT_FALSE(is_recognized("u = Div (x, root2) e = Erf (u) f = Sub (e, one) g = Mul (x, f) y = Mul (g, half)"));
  // A value on the way that something else reads, or that the loss names.
  EXPECT_FALSE(
      is_recognized("u = Div (x, root2) e = Erf (u) f = Add (e, one) g = Mul (x, f) z = Mul (g, half) "
                    "y = Add (z, e)"));
  BuildOptions options;
  options.loss = "mse(f, labels)";
  EXPECT_FALSE(is_recognized(kGelu, options));
  options.loss = "mse(ff, labels)";
  EXPECT_TRUE(is_recognized(kGelu, options));
  // A constant that is to be trained.
  options = {};
  options.train = {"half"};
  EXPECT_FALSE(is_recognized(kGelu, options));
  // An attribute is a float32 number: 1/6 is none in float64.
  Model hard_sigmoid = make_model({"", "a = Add (x, three) c = Clip (a, zero, six) y = Div (c, six)"}, DType::kFloat);
  EXPECT_TRUE(recognize({}).run(hard_sigmoid));
  EXPECT_TRUE(hard_sigmoid.graph->find("y")->producer()->is("HardSigmoid"));
  hard_sigmoid = make_model({"", "a = Add (x, three) c = Clip (a, zero, six) y = Div (c, six)"}, DType::kDouble);
  EXPECT_FALSE(recognize({}).run(hard_sigmoid));
  // So HardSwish's own spelling at opset 13, and HardSigmoids that are not its.
  constexpr const char* kHardSwish = "g = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, g)";
  EXPECT_TRUE(is_recognized(kHardSwish));
  Model hard_swish = make_model({"", kHardSwish}, DType::kDouble);
  EXPECT_FALSE(recognize({}).run(hard_swish));
  EXPECT_FALSE(is_recognized("g = HardSigmoid <alpha = 0.2, beta = 0.5> (x) y = Mul (x, g)"));
  EXPECT_FALSE(is_recognized("y = Clip (x, zero, one)"));
  // Groups that are to be scaled on their own, or whose scale and bias are to be trained.
  constexpr const char* kGroups =
      "g = Reshape (x, grouped) n = InstanceNormalization (g, ones, zeros) h = Reshape (n, whole) "
      "m = Mul (h, channel_s) y = Add (m, channel_b)";
  EXPECT_TRUE(is_recognized(kGroups));
  EXPECT_FALSE(is_recognized(replaced(kGroups, "zeros", "ones").c_str()));
  options = {};
  options.train = {"ones", "channel_s"};
  EXPECT_FALSE(is_recognized(kGroups, options));
  // Axes that are not the last ones; axes that differ.
  EXPECT_FALSE(
      is_recognized("m = ReduceMean (x, middle) d = Sub (x, m) p = Pow (d, two) v = ReduceMean (p, middle) "
                    "w = Add (v, eps) r = Sqrt (w) n = Div (d, r) y = Mul (n, s)"));
  Model differ = make_model({"",
                             "m = ReduceMean (x, last2) d = Sub (x, m) p = Pow (d, two) v = ReduceMean (p, last) "
                             "w = Add (v, eps) r = Sqrt (w) n = Div (d, r) y = Mul (n, s)"},
                            DType::kFloat);
  EXPECT_TRUE(recognize({}).run(differ));
  EXPECT_TRUE(differ.graph->find("y")->producer()->is("RMSNormalization", kDomain));  // of what is centered
  EXPECT_FALSE(
      is_recognized("h = ReduceMax (x, last) d = Sub (x, h) e = Exp (d) t = ReduceSum (e, middle) "
                    "y = Div (e, t)"));
}

// Chains of sums and products are taken apart in many ways: none may take long.
// Processor time that the pass takes for a chain of element-wise operators, of which nothing is recognized.
double seconds_for_chain(int length) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const Var input = b.var(model.graph->add_input("x", {DType::kFloat, Dims{"N"}}));
  Var x = b.op("Softplus", {erf(input)});
  for (const char* op : {"Tanh", "Exp", "Log", "Sigmoid"}) x = b.op(op, {x});
  x = reduce_mean(x, {-1}) + reduce_max(x, {-1}) * reduce_sum(x, std::vector<int64_t>{-1});
  for (int i = 0; i < length; ++i) x = (x + input) * (x * input) - x / input;
  model.graph->add_output(x.value());
  const std::clock_t start = std::clock();
  EXPECT_FALSE(recognize({}).run(model));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf("%zu nodes in %.0f ms\n", model.graph->num_nodes(), 1000 * seconds);
  return seconds;
}

TEST(RecognizePass, LongChainsTakeLinearTime) {
  constexpr double kMost = 8;  // 4 times as long, and some for caches; square were 16
  double growth = 1e9;
  for (int attempt = 0; attempt < 4 && growth > kMost; ++attempt) {
    growth = std::min(growth, seconds_for_chain(6000) / seconds_for_chain(1500));
  }
  EXPECT_LE(growth, kMost);
}

}  // namespace
}  // namespace onnx_train::recognize_test
