#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "tests/support/error_of.h"

namespace onnx_train::ir_test {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = R"(
<ir_version: 10, opset_import: ["" : 21]>
g (float[N,4] x) => (float[N,3] y)
<float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] b = {1,2,3}>
{
  h = MatMul(x, w)
  y = Add(h, b)
}
)";

TEST(Tensor, SomeBytesHaveAMemory) {
  EXPECT_THROW(Tensor(DType::kFloat, {2, 3}, nullptr, nullptr), Error);
  EXPECT_THROW(Tensor::on_device(DType::kFloat, {2, 3}, nullptr), Error);
  EXPECT_EQ(Tensor::on_device(DType::kFloat, {0, 3}, nullptr).size(), 0);
}

TEST(Ir, RoundTripKeepsTheMessage) {
  const Model model = from_text(kModel);
  onnx::ModelProto once, twice;
  to_proto(model, &once);
  to_proto(from_proto(once), &twice);
  EXPECT_EQ(once.SerializeAsString(), twice.SerializeAsString());
}

TEST(Ir, TextIsNestedToADepthAndHasNumbersThatTypesHold) {
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "seq(";
  const std::string model = "<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x) => (float[2] y) ";
  EXPECT_THAT(error_of([&] { from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (" + nested); }),
              HasSubstr("nested more than 100 deep"));
  EXPECT_THAT(error_of([&] { from_text(model + "{ y = Elu <alpha = 1e999> (x) }"); }), HasSubstr("ONNX text: "));
  const std::string brackets(200, '(');  // in strings and comments
  from_text("# " + brackets + "\n" + model + "{ y = Mod <doc = \"\\\"" + brackets + "\"> (x, x) }");
}

TEST(Ir, InferenceKeepsSymbols) {
  Model model = from_text(kModel);
  infer_types(model.graph.get());
  EXPECT_EQ(to_string(model.graph->find("h")->type()), "float[N,3]");
}

TEST(Ir, ReplaceKeepsOutputNames) {
  Model model = from_text(kModel);
  Graph& g = *model.graph;
  g.replace(g.find("y"), g.find("h"));
  EXPECT_EQ(g.outputs()[0]->name(), "y");
  EXPECT_TRUE(g.outputs()[0]->producer()->is("MatMul"));
}

TEST(Ir, BuilderSharesConstants) {
  Model model = from_text(kModel);
  Builder b(model.graph.get());
  const Var x = b.var(model.graph->find("x"));
  const Var y = 1.0 - x * x + 1.0;
  EXPECT_EQ(to_string(y.type()), "float[N,4]");
  EXPECT_EQ(model.graph->initializers().size(), 3u);
}

TEST(Error, ACodeIsOfAKind) {
  const Error known("there is no loss", ErrorCode::kUnknownLoss), other("out of range", ErrorCode::kData);
  EXPECT_EQ(known.kind(), ErrorCode::kUsage);
  EXPECT_STREQ(known.code_text(), "OT3001");
  EXPECT_STREQ(known.what(), "there is no loss");
  EXPECT_EQ(other.kind(), ErrorCode::kData);
  EXPECT_STREQ(other.code_text(), "");
  for (const ErrorRow& row : error_rows()) EXPECT_LE(row.kind, ErrorCode::kDevice) << row.text;
}

TEST(Ir, UndefinedInputIsNamed) {
  try {
    from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x) => (float[2] y) { y = Relu(z) }");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'z'"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace onnx_train::ir_test
