// What follows from the table of losses: grammar, messages, resolved expressions, documentation; and teachers.
#include "onnx_passes/loss/loss_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/loss/loss_model.h"
#include "onnx_passes/training/training_mode.h"
#include "tests/support/error_of.h"
#include "tests/support/golden.h"

namespace onnx_train::loss_table_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Model built(const std::string& expression, std::shared_ptr<const LossModel> teacher = nullptr) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[batch,3] x, float[batch,4] aux, float[batch,5,6,7] image, float[9,batch,4] speech) =>
        (float[batch,3] logits, float[batch,3] other, float[batch,4] wide, float[batch,5,6,7] masks,
         float[batch,1] column, float[9,batch,4] steps)
        <float scale = {0.5}, float[2] pair = {1, 2}, int64[1] axis = {1}>
    { logits = Exp(x) other = Neg(x) wide = Exp(aux) masks = Neg(image) column = ReduceSum<keepdims = 1>(x, axis)
      steps = Neg(speech) scaled = Mul(x, scale) pairs = Neg(pair) })");
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = expression;
  options.teacher = std::move(teacher);
  training_mode(options).run(model);
  loss(options).run(model);
  return model;
}

std::string resolved_as(const std::string& expression) { return built(expression).metadata("onnx_train.loss"); }
std::string mean_of_loss(const std::string& expression) { return built(expression).metadata("onnx_train.mean_over"); }
std::string error(const std::string& expression) {
  return error_of([&] { built(expression); });
}
std::string new_inputs(const Model& model) {
  std::string text;
  for (const Value* input : model.find_entry_point("step")->algorithm->inputs()) {
    text += concat(text.empty() ? "" : ", ", input->name(), " ", to_string(input->type()));
  }
  return text;
}

TEST(LossTable, LogitsAreWhatALossMakesProbabilitiesOf) {
  std::set<std::string> names;
  for (const LossRow& row : loss_rows()) {
    if (takes_logits(row)) names.insert(row.name);
  }
  EXPECT_THAT(names,
              ElementsAre("bce_with_logits", "cross_entropy", "ctc", "dice", "distill", "focal", "sigmoid_focal"));
}

TEST(LossTable, NamesAndOptionsAreUnique) {
  std::set<std::string> names;
  for (const LossRow& row : loss_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    std::set<std::string> options;
    for (const LossOption& option : row.options) EXPECT_TRUE(options.insert(option.name).second) << option.name;
    EXPECT_TRUE(options.contains("reduction") && options.contains("sample_weight")) << row.name;
    EXPECT_EQ(row.arguments[0].kind, ArgumentKind::kPrediction) << row.name;
  }
}

TEST(LossTable, IsTheReferenceInTheDocumentation) { expect_reference("losses.md", loss_reference()); }

TEST(LossTable, MessagesNameWhatALossTakes) {
  EXPECT_THAT(error("huber(logits, gamma=1)"),
              HasSubstr("column 15: huber has no option 'gamma'; it has delta, reduction, sample_weight"));
  EXPECT_THAT(error("huber(logits, delat=1)"), HasSubstr("did you mean 'delta'?"));
  EXPECT_THAT(error("triplet_margin(logits, other, x, y)"),
              HasSubstr("column 34: triplet_margin takes anchor, positive and negative"));
  EXPECT_THAT(error("triplet_margin(logits)"),
              HasSubstr("column 1: triplet_margin takes anchor, positive and negative; name the 3 predictions: "
                        "triplet_margin(anchor, positive, negative)"));
  EXPECT_THAT(error("info_nce(logits, others)"),
              HasSubstr("column 18: 'others' is not a value of the model; did you mean 'other'"));
  EXPECT_THAT(
      error("info_nce(logits, wide)"),
      HasSubstr("the b 'wide' is float[batch,4], the prediction 'logits' is float[batch,3]; info_nce compares both"));
  EXPECT_THAT(error("info_nce(masks, masks)"), HasSubstr("'masks' is float[batch,5,6,7]; info_nce needs 2 axes"));
  EXPECT_THAT(error("dice(logits)"), HasSubstr("'logits' is float[batch,3]; dice needs 3 axes or more"));
  EXPECT_THAT(error("dice(masks, axis=0)"), HasSubstr("axis 0 holds the samples"));
  EXPECT_THAT(error("sigmoid_focal(alpha=2)"), HasSubstr("column 21: 'alpha' must be from -1 to 1"));
  EXPECT_THAT(error("kl_div(log_target=0.5)"), HasSubstr("'log_target' must be true or false"));
  EXPECT_THAT(error("kl_div(reduction=none)"), HasSubstr("the reduction is mean, sum or batchmean"));
  EXPECT_THAT(error("hinge(p=3)"), HasSubstr("'p' must be 1 or 2"));
  EXPECT_THAT(error("mse(reduction=sum, reduction=mean)"), HasSubstr("column 20: 'reduction' is given twice"));
  EXPECT_THAT(
      error("info_nce(logits, other, temperature=pair)"),
      HasSubstr("the temperature 'pair' is float[2], the prediction 'logits' is float[batch,3]; it is one float"));
  EXPECT_THAT(error("info_nce(logits, other, temperature=[1])"), HasSubstr("a number or the name of a scalar"));
  EXPECT_EQ(error("info_nce(logits, other, temperature=scale)"), "");
}

TEST(LossTable, ClassWeightsAreAListOrAName) {
  EXPECT_EQ(resolved_as("cross_entropy(weight=[1, 2, 0.5])"),
            "cross_entropy(logits, labels, axis=1, weight=[1, 2, 0.5])");
  EXPECT_EQ(resolved_as("cross_entropy(logits, labels, axis=1, weight=[1, 2, 0.5])"),
            "cross_entropy(logits, labels, axis=1, weight=[1, 2, 0.5])");
  EXPECT_EQ(mean_of_loss("focal(weight=[1, 2, 0.5])"), "weights of labels");
  EXPECT_THAT(
      error("cross_entropy(weight=[1, 2])"),
      HasSubstr("column 22: the weight has 2 numbers, and 'logits', float[batch,3], has 3 classes along axis 1"));
  EXPECT_THAT(error("cross_entropy(weight=2)"), HasSubstr("'weight' is the name of a tensor or a list: [1, 2]"));
  EXPECT_THAT(error("bce_with_logits(weight=[1])"), HasSubstr("'weight' is the name of a tensor"));
  for (const char* text : {"cross_entropy(weight=[])", "cross_entropy(weight=[1,)", "cross_entropy(weight=[a])",
                           "cross_entropy(weight=[nan])", "cross_entropy(weight=[1"}) {
    EXPECT_THAT(error(text), HasSubstr("expected")) << text;
  }
}

TEST(LossTable, SampleWeightsAreAnInputWithANumberForEachSample) {
  const Model model = built("0.5*focal(masks, y, sample_weight=s) + mse(wide, sample_weight=s)");
  EXPECT_EQ(new_inputs(model), "y int64[batch,6,7], s float[batch], labels float[batch,4]");
  EXPECT_EQ(model.metadata("onnx_train.mean_over"), "labels times sample weights, elements times sample weights");
  EXPECT_THAT(error("mse(wide, sample_weight=x)"), HasSubstr("it has one float for each sample"));
  EXPECT_THAT(error("mse(scale, sample_weight=s)"), HasSubstr("it has no axis for the samples"));
  EXPECT_THAT(error("nll(axis=0, sample_weight=s)"), HasSubstr("column 10: with sample weights, axis 0"));
}

TEST(LossTable, SeveralTargetsHaveTheNamesOfTheTable) {
  EXPECT_EQ(new_inputs(built("ctc(steps)")),
            "labels int64[batch,labels_length], input_lengths int64[batch], target_lengths int64[batch]");
  EXPECT_EQ(resolved_as("dpo(logits, other)"), "dpo(logits, other, reference_chosen, reference_rejected)");
  EXPECT_EQ(new_inputs(built("gaussian_nll(logits, column)")), "labels float[batch,3]");
  EXPECT_EQ(new_inputs(built("cosine_embedding(logits, other)")), "labels float[batch]");
  EXPECT_EQ(new_inputs(built("dice(masks, sigmoid=true)")), "labels float[batch,5,6,7]");
}

TEST(LossTable, ATimeAxisOfUnknownSizeIsNamed) {
  EXPECT_THAT(
      error("ctc(steps, time=1)"),
      HasSubstr("axis 1 of 'steps' float[9,batch,4], is not known: --dim NAME=N gives it, time=0 names the other"));
}

// ---- Teachers

std::shared_ptr<const LossModel> teacher(const std::string& graph) {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 22]> t " + graph);
  infer_types(model.graph.get());
  return std::make_shared<const LossModel>(LossModel{"t.onnx", std::move(model)});
}

TEST(Teacher, IsInTheEntryPointsAlone) {
  const auto model =
      built("cross_entropy + 3*distill(logits, teacher.logits) + mse(wide, teacher.aux)",
            teacher("(float[N,3] x, float[N,4] aux) => (float[N,3] logits, float[N,4] aux) <float[3,3] w = "
                    "{1,2,3,4,5,6,7,8,9}> { logits = MatMul(x, w) }"));
  EXPECT_EQ(new_inputs(model), "labels int64[batch]");
  EXPECT_EQ(model.metadata("onnx_train.teacher"), "t.onnx");
  for (const EntryPoint& entry : model.entry_points) {
    const Value* logits = entry.algorithm->find("teacher.logits");
    ASSERT_TRUE(logits);
    EXPECT_EQ(to_string(logits->type()), "float[batch,3]");
    EXPECT_TRUE(entry.algorithm->find("teacher/w")->is_constant());
  }
  EXPECT_FALSE(model.graph->find("teacher/w") || model.graph->find("teacher.logits"));
}

TEST(Teacher, ThatDoesNotFitIsNamed) {
  const auto message = [](const std::string& graph, const std::string& expression) {
    return error_of([&] { built(expression, teacher(graph)); });
  };
  EXPECT_THAT(
      message("(float[N,3] pixels) => (float[N,3] logits) { logits = Neg(pixels) }", "mse"),
      HasSubstr("input 'pixels' of the teacher 't.onnx' is no input of the model, whose inputs are 'x', 'aux'"));
  EXPECT_THAT(message("(float[N,2] x) => (float[N,2] logits) { logits = Neg(x) }", "mse"),
              HasSubstr("input 'x' of the teacher 't.onnx' is float[N,2]"));
  const std::string fits = "(float[N,3] x) => (float[N,3] logits) { logits = Neg(x) }";
  EXPECT_THAT(message(fits, "mse(logits, teacher.logit)"),
              HasSubstr("column 13: 'teacher.logit' is not an output of the teacher"));
}

}  // namespace
}  // namespace onnx_train::loss_table_test
