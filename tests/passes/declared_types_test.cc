// Types that a file declares where inference does not reach, and branches that sizes decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/analysis.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/error_of.h"

namespace onnx_train::declared_types_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

onnx::ModelProto parse(const std::string& body) {
  onnx::ModelProto proto;
  to_proto(from_text("<ir_version: 10, opset_import: [\"\" : 21]> g " + body), &proto);
  return proto;
}

std::string type_of(const Model& model, const std::string& name) {
  const Value* value = model.graph->find(name);
  return value ? to_string(value->type()) : "nothing";
}

std::string operators_of(const Model& model) {
  std::string text;
  for (const Node* node : model.graph->nodes()) text += (text.empty() ? "" : " ") + node->op();
  return text;
}

std::string plan_error(Model model, const Shape& x) {
  Session session(std::move(model));
  return error_of([&] { session.plan("predict", {{"x", x}}); });
}

// Inference cannot know how many axes of size 1 a Squeeze without axes removes.
const char* const kSqueeze = "(float[N, one, 4] x) => (float[N, 4] y) { [s] h = Squeeze(x) y = Relu(h) }";
const char* const kWrong = "(float[N, one, 4] x) => (float[N, 5] y) { y = Squeeze(x) }";

TEST(DeclaredTypes, CompleteWhatInferenceDoesNotReach) {
  EXPECT_EQ(type_of(import_model(parse(kSqueeze)), "y"), "float[N,4]");
  EXPECT_EQ(type_of(import_model(parse(kWrong)), "y"), "float[N,5]");
  EXPECT_EQ(type_of(import_model(parse(kWrong), {.fix_shapes = true}), "y"), "float");
}

TEST(DeclaredTypes, AreCheckedWhenAPlanIsMade) {
  EXPECT_EQ(plan_error(import_model(parse(kSqueeze)), {3, 1, 4}), "");
  EXPECT_THAT(
      plan_error(import_model(parse(kSqueeze)), {3, 2, 4}),
      AllOf(HasSubstr("declares 'y' as float[N,4]"), HasSubstr("it is float[3,2,4]"), HasSubstr("--fix-shapes")));
  EXPECT_THAT(plan_error(import_model(parse(kWrong)), {3, 1, 4}),
              AllOf(HasSubstr("declares 'y' as float[N,5]"), HasSubstr("it is float[3,4]")));
}

TEST(DeclaredTypes, OfIntermediateValuesAreKeptInTheFile) {
  onnx::ModelProto proto;
  to_proto(
      import_model(parse("(float[N, one, 4] x) => (float[N, 4] y) <float[N, 4] h> { h = Squeeze(x) y = Relu(h) }")),
      &proto);
  Model again = from_proto(proto);
  EXPECT_EQ(type_of(again, "h"), "float[N,4]");
  EXPECT_THAT(plan_error(std::move(again), {3, 2, 4}), HasSubstr("declares 'h' as float[N,4]"));
}

// Somebody has made the batch dynamic and left the types of other values as they were.
TEST(DeclaredTypes, ThatAreNarrowerThanTheInputsGiveRanksAlone) {
  const Model model = import_model(parse(R"((float[N, one, 4] x) => (float y) <float[1, 1, 4] h, float[1, 4] s> {
    h = Relu(x) s = Squeeze(h) y = Neg(s) })"));
  EXPECT_EQ(type_of(model, "s"), "float[?,?]");
  EXPECT_EQ(plan_error(import_model(parse(R"((float[N, one, 4] x) => (float y) <float[1, 1, 4] h, float[1, 4] s> {
    h = Relu(x) s = Squeeze(h) y = Neg(s) })")),
                       {3, 1, 4}),
            "");
}

TEST(DeclaredTypes, FollowANewBatch) {
  const Model model = import_model(parse("(float[2, one, 4] x) => (float[2, 4] y) { h = Squeeze(x) y = Relu(h) }"),
                                   {.batch = "dynamic"});
  EXPECT_EQ(type_of(model, "y"), "float[batch,4]");
}

TEST(Import, OperatorsThatAreNotKnownAreNamedBeforeTypes) {
  const auto error = [](const std::string& graph) {
    return error_of([&] {
      onnx::ModelProto proto;
      to_proto(
          from_text("<ir_version: 8, opset_import: [\"\" : 11, \"com.microsoft\" : 1, \"ai.onnx.ml\" : 1]> g " + graph),
          &proto);
      import_model(proto);
    });
  };
  EXPECT_THAT(
      error("(float[N, 2] x) => (float[N, 2] y) { h = com.microsoft.FusedThing(x) g = com.microsoft.FusedThing(h) "
            "y = Softmax(g) }"),
      AllOf(HasSubstr("operator FusedThing of domain com.microsoft (2 nodes, the first is node 'h') is not known "
                      "here"),
            HasSubstr("fusions")));
  EXPECT_THAT(error("(float[N, 2] x) => (float[N, 2] y) { h = ai.onnx.ml.SVMRegressor(x) y = Softmax(h) }"),
              HasSubstr("operator SVMRegressor of domain ai.onnx.ml"));
  EXPECT_THAT(error("(float[N, 2] x) => (float[N, 2] y) { y = Nonsense(x) }"), HasSubstr("opset 11 does not have it"));
  EXPECT_EQ(error("(float[N, 2] x) => (float[N, 2] y) { y = Relu(x) unread = com.microsoft.FusedThing(x) }"), "");
}

TEST(Plan, NamesOperatorsWithoutAKernelInOneSentence) {
  const auto error = [](const std::string& graph) { return plan_error(import_model(parse(graph)), {3, 2}); };
  EXPECT_THAT(error("(float[N, 2] x) => (uint8[H, W, C] y) {"
                    "  b = Cast<to = 2>(x) s = Constant<value_ints = [-1]>() c = Reshape(b, s)"
                    "  [q] q = ImageDecoder(c) r = ImageDecoder(c) y = Max(q, r) }"),
              HasSubstr("no kernel for the operator ImageDecoder (2 nodes, the first is node 'q')"));
  EXPECT_THAT(error("(float[N, 2] x, int64 s) => (float[M, 2] y) { q = SplitToSequence(x, s)"
                    " y = ConcatFromSequence<axis = 0>(q) }"),
              AllOf(HasSubstr("SplitToSequence"), HasSubstr("without sequences")));
  EXPECT_EQ(error("(float[N, 2] x) => (int64[2, M] y) { [n] y = NonZero(x) }"), "");  // a run decides its shape
}

// As an exporter writes x.squeeze(-1) where it does not know the size, and what follows.
std::string squeeze_if(const std::string& last, const std::string& output = "float y") {
  return "(float[N, L] x) => (" + output + R"()
    <int64 one = {1}, int64 first = {1}, int64[1] axis = {1}> {
      s = Shape(x) l = Gather(s, first) c = Equal(l, one)
      [if] h = If (c) <then_branch = t () => (float[N] p) { p = Squeeze(x, axis) },
                       else_branch = e () => (float[N, L] q) { q = Neg(x) }>
      [last] y = )" +
         last + "(h)" + " }";
}

TEST(Branches, AreDecidedByWhatFollows) {
  const std::string text = R"((float[N, L] x) => (float y)
    <int64 one = {1}, int64 first = {1}, int64[1] axis = {1}, float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
      s = Shape(x) l = Gather(s, first) c = Equal(l, one)
      [if] h = If (c) <then_branch = t () => (float p) { p = Squeeze(x, axis) },
                       else_branch = e () => (float q) { q = Neg(x) }>
      [fc] y = Gemm(h, w) })";
  std::vector<Finding> findings;
  EXPECT_EQ(operators_of(import_model(parse(text), {}, &findings)), "Neg Gemm");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].what, HasSubstr("does not fit node 'fc' (Gemm)"));
  EXPECT_EQ(operators_of(import_model(parse(squeeze_if("Relu", "float[N] y")))), "Squeeze Relu");
  EXPECT_EQ(operators_of(import_model(parse(squeeze_if("Relu", "float[N, L] y")))), "Neg Relu");
}

TEST(Branches, AreDecidedByASizeThatIsGiven) {
  const std::string text = squeeze_if("Relu");
  EXPECT_THAT(operators_of(import_model(parse(text))), HasSubstr("If"));
  EXPECT_EQ(operators_of(import_model(parse(text), {.dims = {"L=1"}})), "Squeeze Relu");
  EXPECT_EQ(operators_of(import_model(parse(text), {.dims = {"L=5"}})), "Neg Relu");
  EXPECT_THAT(error_of([&] { import_model(parse(text), {.dims = {"M=5"}}); }),
              HasSubstr("no input has a dimension 'M'"));
}

TEST(Branches, AreTakenByThePlanThatKnowsTheSizes) {
  Session session(import_model(parse(squeeze_if("Relu"))));
  EXPECT_EQ(session.run("predict", {{"x", Tensor::of<float>({2, 1}, {3, -4})}}).at("y").shape(), Shape({2}));
  EXPECT_EQ(session.run("predict", {{"x", Tensor::of<float>({1, 2}, {3, -4})}}).at("y").at(1), 4);
}

TEST(Branches, TheWayOutNamesTheSizeThatDecides) {
  Model model = import_model(parse(squeeze_if("Relu")));
  BuildOptions options;
  options.loss = "mse(y, t)";
  EXPECT_THAT(error_of([&] { build_training_model(&model, options); }), HasSubstr("--dim L=N"));
}

}  // namespace
}  // namespace onnx_train::declared_types_test
