// Weights wherever exporters put them, branches that a known condition takes, 16-bit floats: what importing makes of
// them. tests/python/test_import_weights.py trains such models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/analysis.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/widen.h"
#include "tests/support/error_of.h"

namespace onnx_train::import_weights_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

onnx::ModelProto parse(const std::string& text) {
  onnx::ModelProto proto;
  to_proto(from_text(text), &proto);
  return proto;
}

// Of a graph in ONNX's text syntax.
onnx::ModelProto parse_graph(const std::string& graph) {
  return parse("<ir_version: 10, opset_import: [\"\" : 21]> " + graph);
}

// A file as a writer leaves it that parses as text no more: nodes in another order.
onnx::ModelProto reversed(onnx::ModelProto proto) {
  auto* nodes = proto.mutable_graph()->mutable_node();
  for (int i = 0, j = nodes->size() - 1; i < j; ++i, --j) nodes->SwapElements(i, j);
  return proto;
}

std::vector<std::string> trained(const Model& model) {
  std::vector<std::string> names;
  for (const Value* value : select_trainable(model, {}, {})) names.push_back(value->name());
  return names;
}

std::string error_of(const onnx::ModelProto& proto, const ImportOptions& options = {}) {
  return onnx_train::error_of([&] { import_model(proto, options); });
}

std::vector<std::string> operators(const Model& model) {
  std::vector<std::string> ops;
  for (const Node* node : model.graph->nodes()) ops.push_back(node->op());
  return ops;
}

void expect_valid(const Model& model) {
  onnx::ModelProto proto;
  to_proto(model, &proto, {.all_types = true});
  EXPECT_NO_THROW(check_proto(proto));
}

// ---- Weights

TEST(ImportWeights, ConstantsThatOperatorsReadAsWeightsBecomeInitializers) {
  std::vector<Finding> findings;
  const Model model = import_model(parse_graph(R"(
    g (float[N, 2, 4, 4] x) => (float[N, 3] y) {
      filter = Constant<value = float[3, 2, 1, 1] {1, 2, 3, 4, 5, 6}>()
      h = Conv(x, filter)
      bias = Constant<value = float[1, 3, 1, 1] {1, 2, 3}>()
      i = Add(h, bias)
      slope = Constant<value_floats = [0.1, 0.2, 0.3]>()
      shaped = Constant<value_ints = [3, 1, 1]>()
      slopes = Reshape(slope, shaped)
      j = PRelu(i, slopes)
      half = Constant<value_float = 0.5>()
      k = Mul(j, half)
      p = GlobalAveragePool(k)
      f = Flatten(p)
      w = Constant<value = float[3, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9}>()
      m = MatMul(f, w)
      scale = Constant<value = float[3] {1, 2, 3}>()
      y = Mul(m, scale)
    })"),
                                   {}, &findings);
  EXPECT_THAT(trained(model), ElementsAre("filter", "bias", "slope", "w", "scale"));
  EXPECT_TRUE(model.graph->find("half")->producer()->is("Constant"));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].subject, "5 weights");
  EXPECT_THAT(findings[0].what, HasSubstr("'filter', 'bias', 'slope' and 2 more"));
  expect_valid(model);
}

TEST(ImportWeights, MasksTablesAndImageScalesStayConstants) {
  const Model model = import_model(parse_graph(R"(
    g (float[N, 2, 4, 4] x, float[N, 3, 3] s) => (float[N, 2, 4, 4] y, float[N, 3, 3] p) {
      mean = Constant<value = float[1, 2, 1, 1] {1, 2}>()
      a = Sub(x, mean)
      deviation = Constant<value = float[1, 2, 1, 1] {1, 2}>()
      b = Mul(a, deviation)
      y = Relu(b)
      t = Tanh(s)
      angles = Constant<value = float[3, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9}>()
      turned = Mul(t, angles)
      mask = Constant<value = float[3, 3] {0, -9, -9, 0, 0, -9, 0, 0, 0}>()
      masked = Add(turned, mask)
      p = Softmax(masked)
    })"));
  EXPECT_THAT(trained(model), IsEmpty());
}

TEST(ImportWeights, ABiasBeforeASoftmaxIsAWeight) {
  const Model model = import_model(parse_graph(R"(
    g (float[N, 2] x) => (float[N, 3] p) {
      w = Constant<value = float[2, 3] {1, 2, 3, 4, 5, 6}>()
      h = MatMul(x, w)
      b = Constant<value = float[3] {1, 2, 3}>()
      i = Add(h, b)
      p = Softmax(i)
    })"));
  EXPECT_THAT(trained(model), ElementsAre("w", "b"));
}

TEST(ImportWeights, TheZerosOfANormWithoutABiasAreNoWeights) {  // as PyTorch exports LayerNorm(bias=False)
  const std::string nodes = R"(
      zeros = Constant<value = float[3] {0, 0, 0}>()
      y = LayerNormalization(x, scale, zeros)
    })";
  const Model stored =
      import_model(parse_graph("g (float[N, 3] x) => (float[N, 3] y) <float[3] scale = {1, 2, 4}> {" + nodes));
  EXPECT_THAT(trained(stored), ElementsAre("scale"));
  const Model constant = import_model(
      parse_graph("g (float[N, 3] x) => (float[N, 3] y) { scale = Constant<value = float[3] {1, 2, 4}>()" + nodes));
  EXPECT_THAT(trained(constant), UnorderedElementsAre("scale", "zeros"));
}

TEST(ImportWeights, EqualConstantsStaySeparate) {
  const Model model = import_model(parse_graph(R"(
    g (float[N, 2] x) => (float[N, 2] y) {
      a = Constant<value = float[2, 2] {1, 2, 3, 4}>()
      b = Constant<value = float[2, 2] {1, 2, 3, 4}>()
      h = MatMul(x, a)
      y = MatMul(h, b)
    })"));
  EXPECT_THAT(trained(model), ElementsAre("a", "b"));
}

TEST(ImportWeights, ConstantOfShapeAndSparseValuesAreWeightsToo) {
  onnx::ModelProto proto = parse_graph(R"(
    g (float[N, 2] x) => (float[N, 2] y) {
      s = Constant<value_ints = [2, 2]>()
      ones = ConstantOfShape<value = float[1] {1}>(s)
      h = MatMul(x, ones)
      sparse = Constant<value = float[2, 2] {0, 0, 0, 0}>()
      y = MatMul(h, sparse)
    })");
  onnx::AttributeProto* value = proto.mutable_graph()->mutable_node(3)->mutable_attribute(0);
  value->Clear();
  value->set_name("sparse_value");
  value->set_type(onnx::AttributeProto::SPARSE_TENSOR);
  to_proto(Tensor::of<float>({2}, {5, 7}), "", value->mutable_sparse_tensor()->mutable_values());
  to_proto(Tensor::of<int64_t>({2, 2}, {0, 1, 1, 0}), "", value->mutable_sparse_tensor()->mutable_indices());
  value->mutable_sparse_tensor()->add_dims(2);
  value->mutable_sparse_tensor()->add_dims(2);
  const Model model = import_model(proto);
  EXPECT_THAT(trained(model), UnorderedElementsAre("ones", "sparse"));
  const Tensor dense = from_proto(*model.graph->find("sparse")->initializer());
  EXPECT_THAT(std::vector<float>(dense.data<float>(), dense.data<float>() + 4), ElementsAre(0, 5, 7, 0));
  value->mutable_sparse_tensor()->set_dims(0, 1);
  EXPECT_THAT(error_of(proto), HasSubstr("the index of its value 1 is outside [1,2]"));
}

TEST(ImportWeights, InitializersBehindIdentitiesAreTheWeights) {
  const Model model = import_model(parse_graph(R"(
    g (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y)
    <float[2] s = {1, 2}, float[2] b = {0, 0}, float[2] mean = {0, 1}, float[2] var = {1, 2}> {
      m = Identity(mean)
      n = Identity(m)
      v = Identity(var)
      y = BatchNormalization(x, s, b, n, v)
    })"));
  EXPECT_THAT(trained(model), ElementsAre("s", "b"));  // running statistics are no weights, wherever they come from
  EXPECT_THAT(operators(model), ElementsAre("BatchNormalization"));
}

TEST(ImportWeights, InitializersBehindCastsAreTheWeights) {
  for (const char* chain : {"v = Cast<to = 1>(w)", "c = Cast<to = 1>(w) v = Identity(c)",
                            "i = Identity(w) c = Cast<to = 1>(i) v = Identity(c)"}) {
    for (const std::string type : {"float16", "double"}) {
      const Model model =
          import_model(parse_graph("g (float[N, 2] x) => (float[N, 3] y) <" + type +
                                   "[2, 3] w = {1, 2, 3, 4, 5, 6}> { " + chain + " y = MatMul(x, v) }"));
      EXPECT_THAT(trained(model), ElementsAre("w")) << type << ": " << chain;
    }
  }
}

// ---- Branches

constexpr const char* kSelecting = R"(
    g (float[N, 2] x, int64 sr) => (float[N, 2] y) {
      rate = Constant<value = int64 {16000}>()
      is_wide = Equal(sr, rate)
      y = If (is_wide) <then_branch = wide () => (float[N, 2] p) {
                          w = Constant<value = float[2, 2] {1, 2, 3, 4}>()
                          p = MatMul(x, w) },
                        else_branch = narrow () => (float[N, 2] q) <float[2, 2] w = {5, 6, 7, 8}> {
                          q = MatMul(x, w) }>
    })";

TEST(ImportBranches, AnInputThatSelectsIsSetAndItsBranchTaken) {
  std::vector<Finding> findings;
  const Model wide = import_model(parse_graph(kSelecting), {.set = {"sr=16000"}}, &findings);
  EXPECT_THAT(operators(wide), ElementsAre("MatMul"));
  EXPECT_EQ(wide.graph->inputs().size(), 1u);
  EXPECT_EQ(wide.graph->outputs()[0]->name(), "y");
  EXPECT_THAT(trained(wide), ElementsAre("w"));
  EXPECT_EQ(from_proto(*wide.graph->find("w")->initializer()).at(0), 1);
  EXPECT_EQ(findings[0].what, "always takes its then_branch");
  expect_valid(wide);
  const Model narrow = import_model(parse_graph(kSelecting), {.set = {"sr=8000"}});
  EXPECT_EQ(from_proto(*narrow.graph->find("w")->initializer()).at(0), 5);
  expect_valid(narrow);
}

TEST(ImportBranches, WeightsOfBranchesThatStayGetNamesThatSayWhere) {
  const Model model = import_model(parse_graph(kSelecting));
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "else_branch/w"));
  EXPECT_EQ(from_proto(*model.graph->find("else_branch/w")->initializer()).at(0), 5);
  expect_valid(model);
}

TEST(ImportBranches, NestedConditionsOnKnownShapesAreFolded) {
  const Model model = import_model(parse_graph(R"(
    g (float[N, 2] x, bool fast) => (float[N, 2] y) {
      s = Shape(x)
      one = Constant<value_ints = [1]>()
      width = Gather(s, one)
      two = Constant<value_ints = [2]>()
      fits = GreaterOrEqual(width, two)
      slow = Not(fast)
      both = And(fits, slow)
      y = If (both) <then_branch = a () => (float[N, 2] p) {
                       h = Neg(x)
                       p = If (fits) <then_branch = c () => (float[N, 2] r) { z = Relu(h) r = Exp(z) },
                                      else_branch = d () => (float[N, 2] t) { t = Log(h) }> },
                     else_branch = b () => (float[N, 2] q) { q = Abs(x) }>
    })"),
                                   {.set = {"fast=false"}});
  EXPECT_THAT(operators(model), ElementsAre("Neg", "Relu", "Exp"));
  expect_valid(model);
}

TEST(ImportBranches, SettingsAreChecked) {
  const auto error = [](const char* setting) { return error_of(parse_graph(kSelecting), {.set = {setting}}); };
  EXPECT_THAT(error("sr"), HasSubstr("--set takes NAME=VALUE"));
  EXPECT_THAT(error("rs=1"), HasSubstr("the model has no input 'rs'"));
  EXPECT_THAT(error("sr=1.5"), HasSubstr("'1.5' is no int64"));
  EXPECT_THAT(error("sr=99999999999999999999"), HasSubstr("is no int64"));
  EXPECT_THAT(error("sr=1:2"), HasSubstr("2 values are given"));
  EXPECT_THAT(error("x=1"), HasSubstr("only inputs of one value or one axis can be set"));
}

// ---- The order of nodes

TEST(ImportOrder, NodesOutOfOrderAreSortedInSubgraphsToo) {
  onnx::ModelProto proto = parse_graph(R"(
    g (float[N] x, bool c) => (float[N] y) {
      h = Neg(x)
      i = If (c) <then_branch = a () => (float[N] q) { p = Abs(h) q = Exp(p) },
                  else_branch = b () => (float[N] r) { r = Relu(x) }>
      y = Relu(i)
    })");
  auto* branch = proto.mutable_graph()->mutable_node(1)->mutable_attribute(0)->mutable_g();
  branch->mutable_node()->SwapElements(0, 1);
  std::vector<Finding> findings;
  const Model model = import_model(reversed(proto), {}, &findings);
  EXPECT_THAT(operators(model), ElementsAre("Neg", "If", "Relu"));
  EXPECT_EQ(model.graph->nodes()[1]->subgraphs()[0].graph->first()->op(), "Abs");
  EXPECT_EQ(findings[0].subject, "nodes");
}

TEST(ImportOrder, AnOrderThatIsValidIsKept) {
  const auto proto = parse_graph("g (float[N] x) => (float[N] y) { b = Exp(x) a = Neg(x) z = Abs(b) y = Add(a, z) }");
  EXPECT_THAT(operators(import_model(proto)), ElementsAre("Exp", "Neg", "Abs", "Add"));
}

TEST(ImportOrder, ACycleIsAnErrorThatNamesItsNodes) {
  onnx::ModelProto proto = parse_graph(
      "g (float[N] x) => (float[N] y) { [one] a = Add(x, x) [two] b = Neg(a) [three] c = Exp(b) [four] y = Abs(c) }");
  proto.mutable_graph()->mutable_node(0)->set_input(1, "c");
  EXPECT_THAT(error_of(proto), HasSubstr("the graph has a cycle: node 'one' (Add) reads node 'three' (Exp) reads "
                                         "node 'two' (Neg) reads node 'one' (Add)"));
  proto.mutable_graph()->mutable_node(0)->set_input(1, "nothing");
  EXPECT_THAT(error_of(proto), HasSubstr("reads 'nothing'"));
}

TEST(ImportOrder, ANameOfTwoValuesIsAnErrorThatNamesTheNode) {
  onnx::ModelProto proto = parse_graph(
      "g (float[N] x) => (float[N] y) <float[1] w = {1}> { [one] a = Add(x, w) [two] b = Neg(a) [three] y = Exp(b) }");
  proto.mutable_graph()->mutable_node(1)->set_output(0, "w");
  proto.mutable_graph()->mutable_node(2)->set_input(0, "w");
  EXPECT_THAT(error_of(proto), HasSubstr("node 'two' (Neg) writes 'w', the name of another value"));
}

// ---- Opsets 27 and 28

TEST(ImportNewerOpsets, OperatorsThatDidNotChangeAreWrittenInTheOpsetThatHasThem) {
  const Model model = import_model(parse(R"(<ir_version: 14, opset_import: ["" : 28]>
    g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { h = MatMul(x, w) y = Relu(h) })"));
  EXPECT_EQ(model.context->opset(), 21);
  EXPECT_EQ(model.shell().ir_version(), 10);
}

TEST(ImportNewerOpsets, NewOperatorsGiveWayToTheirBodies) {
  const Model model = import_model(parse(R"(<ir_version: 14, opset_import: ["" : 28]>
    g (float[N, 4] a, float[N, 4] b) => (float[N, 4] y, float[N, 4] z) {
      y = SwiGLU(a, b)
      z = Mod(a, b)
    })"));
  for (const std::string& op : operators(model)) EXPECT_TRUE(op != "SwiGLU" && op != "Mod") << op;
  EXPECT_LE(model.context->opset(), 26);
  expect_valid(model);
}

TEST(ImportNewerOpsets, AnOperatorWithoutAnOlderFormIsNamed) {
  EXPECT_THAT(error_of(parse(R"(<ir_version: 14, opset_import: ["" : 28]>
    g (double[N] x) => (double[N] y) { [c] y = Celu(x) })")),
              HasSubstr("node 'c' (Celu) is written for opset 28 and has no form in opset 26"));
  EXPECT_THAT(error_of(parse(R"(<ir_version: 14, opset_import: ["" : 29]>
    g (float[N] x) => (float[N] y) { y = Relu(x) })")),
              HasSubstr("opset 29; the newest that is supported is 28"));
}

// ---- Declared shapes

TEST(ImportDeclarations, AChangedInitializerIsNamedWithBothItsShapes) {
  onnx::ModelProto proto = parse_graph(
      "g (float[N, 4] x) => (float[N, M] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul(x, w) }");
  auto* input = proto.mutable_graph()->add_input();
  input->set_name("w");
  to_proto(TensorType{DType::kFloat, Dims{Dim(4), Dim(3)}}, input->mutable_type());
  EXPECT_THAT(error_of(proto), HasSubstr("initializer 'w' is declared as float[4,3], but it is float[4,2]"));
  const Model model = import_model(proto, {.fix_shapes = true});
  EXPECT_EQ(to_string(model.graph->find("y")->type()), "float[N,2]");
}

// ---- 16-bit floats

TEST(ImportTypes, SixteenBitFloatsAreWidenedAndCanBeRestored) {
  for (const char* type : {"float16", "bfloat16"}) {
    std::string text = R"(g (T[N, 2] x) => (T[N, 2] y) {
      w = Constant<value = float[2, 2] {1, 2, 3, 4}>()
      v = Cast<to = 99>(w)
      h = MatMul(x, v)
      y = Relu(h)
    })";
    for (size_t at = text.find("T["); at != std::string::npos; at = text.find("T[")) text.replace(at, 1, type);
    const bool half = std::string(type) == "float16";
    text.replace(text.find("99"), 2, half ? "10" : "16");
    std::vector<Finding> findings;
    Model model = import_model(parse_graph(text), {}, &findings);
    EXPECT_THAT(trained(model), ElementsAre("w"));
    EXPECT_THAT(operators(model), ElementsAre("MatMul", "Relu"));
    EXPECT_EQ(to_string(model.graph->inputs()[0]->type()), "float[N,2]");
    EXPECT_EQ(findings[0].subject, "16-bit floats");
    restore_types(&model, original_types(model));
    EXPECT_EQ(to_string(model.graph->inputs()[0]->type()), concat(type, "[N,2]"));
    EXPECT_EQ(to_string(model.graph->outputs()[0]->type()), concat(type, "[N,2]"));
    expect_valid(model);
  }
}

}  // namespace
}  // namespace onnx_train::import_weights_test
