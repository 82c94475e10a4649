// The contracts of operators: that there is one for each that has a kernel, what the grammar says, and what errors say.
#include "onnx_passes/operators/operators.h"

#include <gtest/gtest.h>

#include "kernels/device.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/operators/shape_contract.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/error_of.h"
#include "tests/support/run_node.h"

namespace onnx_train::operators_test {
namespace {

TEST(Operators, EachWithAKernelHasARow) {
  for (const Kernel* kernel : Device::cpu().kernels()) {
    EXPECT_NE(find_operator(kernel->domain, kernel->op), nullptr) << kernel->domain << "." << kernel->op;
  }
}

// What checking the first node of the graph against the contract says.
std::string against(const std::string& contract, const std::string& graph,
                    ElementTypes types = ElementTypes::kOfSchema) {
  const Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> g " + graph);
  return error_of([&] { ShapeContract(contract).check(*model.graph->first(), {"", "", "", types}); });
}

TEST(ShapeContract, SizesOfOneNameAreEqual) {
  const std::string contract = "a[M, K] b[K, N]";
  EXPECT_EQ(against(contract, "(float[2,3] a, float[3,4] b) => (y) { y = MatMul(a, b) }"), "");
  EXPECT_EQ(against(contract, "(float[2,3] a, float[5,4] b) => (y) { y = MatMul(a, b) }"),
            "node 'y' (MatMul): its input 1, 'b', is float[5,4]; it must be b[K, N] with K = 3, N = 4");
  EXPECT_EQ(against(contract, "(float[2,K] a, float[5,4] b) => (y) { y = MatMul(a, b) }"), "");
  EXPECT_NE(against(contract, "(float[2] a, float[5,4] b) => (y) { y = MatMul(a, b) }"), "");
}

TEST(ShapeContract, ExpressionsAreOfNamesAndAttributes) {
  const std::string contract = "x[C] w[C / @group:1, 2 * C + 1]";
  EXPECT_EQ(against(contract, "(float[4] x, float[2,9] w) => (y) { y = Conv<group = 2>(x, w) }"), "");
  EXPECT_EQ(against(contract, "(float[4] x, float[4,9] w) => (y) { y = Conv(x, w) }"), "");
  EXPECT_EQ(against(contract, "(float[4] x, float[2,9] w) => (y) { y = Conv<group = 3>(x, w) }"),
            "node 'y' (Conv): its input 1, 'w', is float[2,9]; it must be w[C / group, 2 * C + 1] with C = 4, "
            "group = 3");
  EXPECT_NE(against(contract, "(float[4] x, float[2,9] w) => (y) { y = Conv<group = 0>(x, w) }"), "");
}

TEST(ShapeContract, ListsOfSizesAreEqualOrBroadcast) {
  const std::string same = "a[S...] b[S...]", both = "a[~S...] b[~S...] -> y[S...]", last = "a[S..., 3]";
  EXPECT_EQ(against(same, "(float[2,3] a, float[2,3] b) => (y) { y = Add(a, b) }"), "");
  EXPECT_NE(against(same, "(float[2,3] a, float[3] b) => (y) { y = Add(a, b) }"), "");
  EXPECT_EQ(against(both, "(float[2,1] a, float[3] b) => (float[2,3] y) { y = Add(a, b) }"), "");
  EXPECT_NE(against(both, "(float[2,1] a, float[3] b) => (float[2,4] y) { y = Add(a, b) }"), "");
  EXPECT_EQ(against(both, "(float[2,5] a, float[3] b) => (float[2,3] y) { y = Add(a, b) }"),
            "node 'y' (Add): its input 1, 'b', is float[3]; it does not broadcast with those before it, to [2,5]");
  EXPECT_EQ(against(last, "(float[3] a) => (y) { y = Relu(a) }"), "");
  EXPECT_EQ(against(last, "(float[1,2,3] a) => (y) { y = Relu(a) }"), "");
  EXPECT_NE(against(last, "(float[1,2] a) => (y) { y = Relu(a) }"), "");
}

TEST(ShapeContract, InputsAreThereOrMayBeLeftOut) {
  const std::string contract = "x min?[] max?[]";
  EXPECT_EQ(against(contract, "(float[2] x, float[1] max) => (y) { y = Clip(x, , max) }"), "");
  EXPECT_EQ(against(contract, "(float[2] x, float[0] min) => (y) { y = Clip(x, min) }"),
            "node 'y' (Clip): its input 1, 'min', is float[0]; it must be min?[]");
  EXPECT_NE(against(contract, "(float m) => (y) { y = Clip(, m) }"), "");
  EXPECT_NE(against(contract, "(float x, float m) => (y) { y = Clip(x, m, m, m) }"), "");
  EXPECT_NE(against("x none!", "(float x) => (y) { y = Sum(x, x) }"), "");
  EXPECT_EQ(against("x more*[]", "(float x) => (y) { y = Sum(x, x, x) }"), "");
}

TEST(ShapeContract, ConditionsChooseBetweenAlternatives) {
  const std::string contract = "x[A, _] where @transA:0 = 0, 1 <= A < 3 | x[_, A] where @transA:0 = 1, 1 <= A < 3";
  EXPECT_EQ(against(contract, "(float[2,9] x) => (y) { y = Gemm(x) }"), "");
  EXPECT_EQ(against(contract, "(float[9,2] x) => (y) { y = Gemm(x) }"),
            "node 'y' (Gemm): it must have 1 <= A < 3; here A = 9");
  EXPECT_EQ(against(contract, "(float[9,2] x) => (y) { y = Gemm<transA = 1>(x) }"), "");
}

TEST(ShapeContract, SizesThatNoMemoryHoldsAreRefused) {
  EXPECT_NE(against("x[S...]", "(float[4294967296,0,4294967296] x) => (y) { y = Relu(x) }"), "");
  EXPECT_EQ(against("x[S...]", "(float[4294967296] x) => (y) { y = Relu(x) }"), "");
}

TEST(ShapeContract, TypesOfOurFunctionsAreOne) {
  const std::string contract = "x[S...] n?:int64[]";
  const auto one = ElementTypes::kOneFloat;
  EXPECT_EQ(against(contract, "(double[2] x, int64 n) => (double[2] y) { y = F(x, n) }", one), "");
  EXPECT_NE(against(contract, "(int32[2] x) => (y) { y = F(x) }", one), "");
  EXPECT_NE(against(contract, "(float[2] x, int32 n) => (y) { y = F(x, n) }", one), "");
  EXPECT_NE(against("x y", "(float[2] x, double y) => (z) { z = F(x, y) }", one), "");
}

TEST(ShapeContract, ATextThatIsNoneSaysWhere) {
  EXPECT_NE(error_of([] { ShapeContract("x[A"); }).find("where ] or a comma should be"), std::string::npos);
  EXPECT_NE(error_of([] { ShapeContract("x[A...,B...]"); }), "");
  EXPECT_NE(error_of([] { ShapeContract("x:string"); }), "");
  EXPECT_NE(error_of([] { ShapeContract("x where A"); }), "");
}

TEST(ShapeContract, NamesHavePlaces) {
  const ShapeContract contract("a b? one/other? -> y z? | a -> y z?");
  EXPECT_EQ(contract.input("b"), 1);
  EXPECT_EQ(contract.input("one"), 2);
  EXPECT_EQ(contract.input("other"), 2);
  EXPECT_EQ(contract.input("y"), -1);
  EXPECT_EQ(contract.output("z"), 1);
  EXPECT_NE(error_of([] { ShapeContract("a b | b a").input("a"); }), "");
}

// ---- Epilogues

// What the check of a node of our domain says.
std::string checked(const std::string& node) {
  const Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21, \"onnx_train\" : 1]> g (float[2,3] a, float[3,4] b, float[4] bias, "
      "float[2,4] c) => (y) { " +
      node + " }");
  return error_of([&] { check_shapes(*model.graph->first()); });
}

TEST(Epilogues, ANodeHasWhatItsStepsReadAndWrite) {
  EXPECT_EQ(checked("y = onnx_train.MatMul <epilogue = \"bias, relu\"> (a, b, bias)"), "");
  EXPECT_EQ(checked("y, kept = onnx_train.MatMul <epilogue = \"bias, keep, gelu\"> (a, b, bias)"), "");
  EXPECT_EQ(checked("y = onnx_train.Gemm <epilogue = \"residual\"> (a, b, , c)"), "");
  EXPECT_EQ(checked("y = onnx_train.Gemm (a, b, bias)"), "");  // its C
  const std::pair<const char*, const char*> wrong[] = {
      {"y = onnx_train.MatMul (a, b, bias)", "no step of its epilogue has the input 'bias'"},
      {"y = onnx_train.MatMul <epilogue = \"bias\"> (a, b)", "step 'bias' of its epilogue lacks the input 'bias'"},
      {"y = onnx_train.MatMul <epilogue = \"residual\"> (a, b, c)", "'"},
      {"y, s = onnx_train.Gemm (a, b)", "no step of its epilogue has the output '"},
      {"y = onnx_train.Gemm <epilogue = \"keep, gelu\"> (a, b)", "step 'keep' of its epilogue lacks the output 'kept'"},
      {"y = onnx_train.Gemm <epilogue = \"bias\"> (a, b, bias)",
       "its epilogue has the step 'bias'; there are residual"},
      {"y = onnx_train.Gemm <epilogue = \"residual, relu_gradient\"> (a, b, , c)", "two steps of its epilogue have"},
      {"y = onnx_train.MatMul <epilogue = \"swish\"> (a, b)", "its epilogue has an unknown step 'swish'"},
      {"y = onnx_train.BatchNormalizationGrad (c, bias, bias, bias, c, c)", "if, and only if, its epilogue is relu"},
  };
  for (const auto& [node, message] : wrong) EXPECT_NE(checked(node).find(message), std::string::npos) << checked(node);
}

TEST(Epilogues, TheyDecideWhichNameAPlaceHas) {
  const Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21, "onnx_train" : 1]>
    g (float[2,3] a, float[3,4] b, float[2,4] c) => (x, y, z) {
      x = onnx_train.MatMul <epilogue = "relu_gradient"> (a, b, , c)
      y, kept = onnx_train.Gemm <epilogue = "keep, gelu"> (a, b, c)
      z = MatMul (a, b)
    })");
  const Node &x = *model.graph->first(), &y = *x.next(), &z = *y.next();
  EXPECT_EQ(input_at(x, "at"), 3);
  EXPECT_EQ(input_at(x, "residual"), -1);
  EXPECT_EQ(input_at(x, "bias"), -1);
  EXPECT_EQ(input_at(y, "c"), 2);
  EXPECT_EQ(output_at(y, "kept"), 1);
  EXPECT_EQ(output_at(y, "sums"), -1);
  EXPECT_EQ(input_at(z, "bias"), -1);
  EXPECT_EQ(place_of_input("onnx_train", "Gemm", "residual"), 3);
  EXPECT_EQ(epilogue_of(y), (Epilogue{EpilogueStep::kKeep, EpilogueStep::kGelu}));
  EXPECT_EQ(to_string(epilogue_of(y)), "keep, gelu");
}

// ---- Models that ONNX's checker accepts

// What planning and running a model of one node says.
std::string plan(const std::string& graph, const std::string& functions = "") {
  return error_of([&] {
    Session session(
        from_text("<ir_version: 10, opset_import: [\"\" : 21, \"onnx_train\" : 1]> g " + graph + functions));
    session.plan("predict", {});
  });
}

TEST(Contracts, RecurrentOperatorsWantTheirWeights) {
  const auto lstm = [](const std::string& w, const std::string& r, const std::string& rest, const std::string& names) {
    return plan("(float[5,2,3] x, float" + w + " w, float" + r + " r" + rest + ") => (float[T,D,N,H] y) { y = LSTM" +
                "<hidden_size = 4>(x, w, r" + names + ") }");
  };
  EXPECT_EQ(lstm("[1,16,3]", "[1,16,4]", "", ""), "");
  EXPECT_NE(lstm("[1,16,2]", "[1,16,4]", "", "").find("'w'"), std::string::npos);
  EXPECT_NE(lstm("[1,12,3]", "[1,16,4]", "", "").find("'w'"), std::string::npos);
  EXPECT_NE(lstm("[1,16,3]", "[1,16,1]", "", ""), "");
  EXPECT_NE(lstm("[2,16,3]", "[2,16,4]", "", "").find("direction"), std::string::npos);
  EXPECT_NE(lstm("[1,16,3]", "[1,16,4]", ", float[1,16] b", ", b").find("'b'"), std::string::npos);
  EXPECT_NE(lstm("[1,16,3]", "[1,16,4]", ", int32[1] n", ", , n").find("'n'"), std::string::npos);
  EXPECT_NE(lstm("[1,16,3]", "[1,16,4]", ", float[1,1,4] h", ", , , h").find("'h'"), std::string::npos);
  EXPECT_NE(lstm("[1,16,3]", "[1,16,4]", ", float[1,2,3] c", ", , , , c").find("'c'"), std::string::npos);
  EXPECT_NE(lstm("[1,16,3]", "[1,16,4]", ", float[1,4] p", ", , , , , p").find("'p'"), std::string::npos);
  for (const std::string op : {"RNN", "GRU"}) {
    const std::string n = op == "RNN" ? "4" : "12";
    const auto graph = [&](const std::string& r) {
      return "(float[5,2,3] x, float[1," + n + ",3] w, float" + r + " r) => (float[T,D,N,H] y) { y = " + op +
             "<hidden_size = 4>(x, w, r) }";
    };
    EXPECT_EQ(plan(graph("[1," + n + ",4]")), "");
    EXPECT_NE(plan(graph("[1," + n + ",2]")).find("'r'"), std::string::npos) << op;
    EXPECT_NE(plan(graph("[1,4,1]")).find("'"), std::string::npos) << op;
  }
}

TEST(Contracts, BoundsAreOneElement) {
  EXPECT_NE(plan("(float[2] x, float[0] min) => (float[2] y) { y = Clip(x, min) }").find("min?[]"), std::string::npos);
  EXPECT_NE(plan("(float[2] x, float[0] min) => (float[2] y) { a = Relu(x) b = Clip(a, min) y = Neg(b) }").find("min"),
            std::string::npos);
  EXPECT_NE(plan("(float[2] x) => (float[2] y) <float[0] min = {}> { a = Relu(x) b = Clip(a, min) y = Neg(b) }"), "");
}

std::string scan(const std::string& attributes, const std::string& body_inputs, const std::string& steps) {
  return plan("(float[2] s, float[" + steps + ",2] x) => (float[2] y, float[N,2] z) { y, z = Scan<num_scan_inputs = 1" +
              attributes + ", body = b (" + body_inputs +
              ") => (float[2] next, float[2] out) { next = Tanh(h) out = Neg(next) }>(s, x) }");
}

TEST(Contracts, AScanFitsItsBody) {
  EXPECT_EQ(scan("", "float[2] h, float[2] now", "3"), "");
  EXPECT_EQ(scan(", scan_input_directions = [1], scan_output_directions = [1]", "float[2] h, float[2] now", "3"), "");
  EXPECT_NE(scan("", "float[2] h", "3").find("body has 1 inputs"), std::string::npos);
  EXPECT_NE(scan(", scan_input_directions = [0, 0]", "float[2] h, float[2] now", "3").find("scan_input_directions"),
            std::string::npos);
  if (default_device().uses_host_memory()) {
    EXPECT_EQ(scan("", "float[2] h, float[2] now", "30000000"), "");
  } else {
    EXPECT_NE(scan("", "float[2] h, float[2] now", "30000000").find("more than the 200000 nodes"), std::string::npos);
  }
}

TEST(Contracts, AScanWithEmptyListsScansForwards) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]> g (float[2] s, float[3,2] x) => (float[2] y) {
    y, z = Scan<num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
      body = b (float[2] h, float[2] now) => (float[2] next, float[2] out) { next = Add(h, now) out = Neg(next) }>(s, x)
  })");
  Node* node = model.graph->first();
  node->set_attr("scan_input_directions", std::vector<int64_t>{});
  node->set_attr("scan_output_directions", std::vector<int64_t>{});
  EXPECT_EQ(error_of([&] { Session(std::move(model)).plan("predict", {}); }), "");
}

TEST(Contracts, StepsAndStartsOfAnySizeAreUnderstood) {
  const auto slice = [](const std::string& start, const std::string& end, const std::string& step) {
    return run_node("Slice", {Tensor::of<float>({4}, {0, 1, 2, 3}), Tensor::ints({std::stoll(start)}),
                              Tensor::ints({std::stoll(end)}), Tensor::ints({0}), Tensor::ints({std::stoll(step)})})[0];
  };
  const std::string least = "-9223372036854775808", most = "9223372036854775807";
  EXPECT_EQ(slice(least, most, "1").size(), 4);
  EXPECT_EQ(slice(most, least, "-1").at(0), 3);
  EXPECT_EQ(slice("-1", least, least).at(0), 3);
  EXPECT_EQ(slice("0", most, most).size(), 1);
}

TEST(Contracts, AttributesWithoutAMeaningAreNamed) {
  const std::string x = "(float[1,4,6,6] x) => (float[A,B,C,D] y) { y = ";
  for (const char* node : {
           "MaxPool<kernel_shape = [2, 2], strides = [0, 1]>(x)",
           "MaxPool<kernel_shape = [2147483648, 2147483648], pads = [1073741824, 1073741824, 1073741824, "
           "1073741824]>(x)",
           "AveragePool<kernel_shape = [2]>(x)",
           "AveragePool<kernel_shape = [9223372036854775807, 1]>(x)",
           "DepthToSpace<blocksize = 0>(x)",
           "DepthToSpace<blocksize = -2>(x)",
           "DepthToSpace<blocksize = 4294967296>(x)",
           "SpaceToDepth<blocksize = 4>(x)",
           "Softmax<axis = 4>(x)",
           "Concat<axis = -5>(x, x)",
           "Flatten<axis = 5>(x)",
           "Transpose<perm = [0, 1, 1, 2]>(x)",
           "Transpose<perm = [0, 1]>(x)",
           "Split<axis = 9, num_outputs = 1>(x)",
           "Split<axis = 1, num_outputs = 0>(x)",
           "LRN<size = 0>(x)",
           "ArgMax<axis = -9223372036854775808>(x)",
           "Einsum<equation = \"abc,bcd->a\">(x)",
       }) {
    EXPECT_NE(plan(x + node + " }").find("node 'y'"), std::string::npos) << node;
  }
  EXPECT_NE(
      plan("(float[1,4,6,6] x, float[4] s) => (float[A,B,C,D] y) { y = GroupNormalization<num_groups = 0>(x, s, s) }")
          .find("num_groups = 0"),
      std::string::npos);
  EXPECT_NE(plan("(float[1,4,6,6] x, float[4,4,3,3] w) => (float[A,B,C,D] y) { y = Conv<group = 0>(x, w) }"), "");
  EXPECT_NE(plan("(float[1,4,6,6] x, float[4,4,3,3] w) => (float[A,B,C,D] y) { y = ConvTranspose<output_padding = "
                 "[9223372036854775807]>(x, w) }"),
            "");
}

TEST(Contracts, NoSizeIsNegative) {
  const std::string topk = plan("(float[4] x) => (float[A] y, int64[B] i) <int64[1] k = {-2}> { y, i = TopK(x, k) }");
  EXPECT_NE(topk.find("no size may be negative"), std::string::npos) << topk;
  EXPECT_NE(plan("(float[4] x) => (float[A] y) <int64[1] n = {-2}> { y = Tile(x, n) }"), "");
  EXPECT_NE(plan("(float[4] x) => (float[A] y) <int64[2] pads = {-3, -3}> { y = Pad(x, pads) }"), "");
  EXPECT_NE(plan("(float[4] x) => (float[A] y, float[B] z) <int64[2] split = {-1, 5}> { y, z = Split(x, split) }"), "");
}

TEST(Contracts, ASplitHasAnOutputForEachPart) {
  const std::string two = "(float[9] x) => (float[A] y, float[B] z) ";
  EXPECT_EQ(plan(two + "{ y, z = Split<num_outputs = 2>(x) }"), "");
  for (const char* parts : {"1", "3", "2147483647"}) {
    EXPECT_NE(plan(two + "{ y, z = Split<num_outputs = " + parts + ">(x) }").find("and has 2 outputs"),
              std::string::npos)
        << parts;
  }
  EXPECT_NE(plan(two + "<int64[1] sizes = {9}> { y, z = Split(x, sizes) }").find("it makes 1 parts"),
            std::string::npos);
}

TEST(Contracts, AFunctionOfOursWithAForeignBodyKeepsItsShapes) {
  const std::string adam = R"(
<domain: "onnx_train", opset_import: ["" : 21]>
Sgd <momentum, dampening, nesterov, weight_decay> (w, g, unused, step, learning_rate, grad_scale) => (next_w) {
  next_w = Concat<axis = 0>(w, w)
})";
  const std::string graph =
      "(float[2] w, float[3] g, int64 step, float rate, float scale) => (float[N] y) { y = onnx_train.Sgd(w, g, , "
      "step, "
      "rate, scale) }";
  EXPECT_NE(plan(graph, adam), "");
}

TEST(Contracts, ACallTakesNoMoreOutputsThanItsFunctionHas) {
  const std::string function = R"(
<domain: "onnx_train", opset_import: ["" : 21]>
Twice (x) => (y) {
  y = Add(x, x)
})";
  EXPECT_NE(plan("(float[2] x) => (float[2] y, float[2] z) { y, z = onnx_train.Twice(x) }", function)
                .find("does not set output 1"),
            std::string::npos);
}

}  // namespace
}  // namespace onnx_train::operators_test
