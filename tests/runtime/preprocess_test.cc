#include "runtime/data/preprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/import/lost_layers.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/passes.h"
#include "runtime/data/dataset.h"
#include "runtime/models/build_notes.h"
#include "tests/support/error_of.h"

namespace onnx_train::preprocess_test {
namespace {

using testing::HasSubstr;

const std::vector<InputSpec> kInputs = {{"image", {DType::kFloat, Dims{"n", 2}}},
                                        {"other", {DType::kFloat, Dims{"n"}}},
                                        {"ids", {DType::kInt64, Dims{"n"}}},
                                        {"target", {DType::kFloat, Dims{"n"}}, /*from_loss=*/true}};
const InputSpec &kImage = kInputs[0], &kOther = kInputs[1], &kIds = kInputs[2], &kTarget = kInputs[3];

Model network(const std::string& body) {
  return from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[n,2] image) => (float[n,2] y) " + body);
}

Tensor bytes(std::initializer_list<uint8_t> values, Shape shape) {
  Tensor tensor(DType::kUint8, std::move(shape));
  std::copy(values.begin(), values.end(), tensor.data<uint8_t>());
  return tensor;
}

TEST(Preprocess, ScalesTheInputInWhateverTypeItIsStoredAndNoTarget) {
  const Preprocess preprocess({"1/255"}, {kImage, kIds, kTarget});
  Tensor floats(DType::kFloat, {1, 2});
  floats.set(0, 255);
  floats.set(1, 51);
  for (const Tensor& stored : {bytes({255, 51}, {1, 2}), floats}) {
    Tensor target(DType::kInt32, {1});
    target.set(0, 3);
    const Dataset data({{"image", stored}, {"target", target}}, {kImage, kTarget}, preprocess);
    TensorMap batch;
    const int64_t row = 0;
    data.gather(&row, 1, &batch);
    EXPECT_FLOAT_EQ(batch.at("image").data<float>()[0], 1);
    EXPECT_FLOAT_EQ(batch.at("image").data<float>()[1], 0.2f);
    EXPECT_EQ(batch.at("target").at(0), 3);
    EXPECT_EQ(stored.at(0), 255);  // what is stored stays
  }
}

TEST(Preprocess, AnInputIsNamedWhereThereAreSeveral) {
  EXPECT_EQ(Preprocess({"other=0.5", "image=2"}, {kImage, kOther}).option(), "image=2,other=0.5");
  const auto refusal = [](const std::string& scale, const std::vector<InputSpec>& inputs) {
    return error_of([&] { Preprocess({scale}, inputs); });
  };
  EXPECT_THAT(refusal("2", {kImage, kOther}), HasSubstr("float inputs 'image', 'other'; name those to scale"));
  EXPECT_THAT(refusal("2", {kIds, kTarget}), HasSubstr("no float input"));
  EXPECT_THAT(refusal("ids=2", {kImage, kIds}), HasSubstr("'ids' takes int64[n]"));
  EXPECT_THAT(refusal("target=2", {kImage, kTarget}), HasSubstr("'target' is a target"));
  EXPECT_THAT(refusal("imag=2", {kImage}), HasSubstr("no input 'imag'; its float inputs are 'image'"));
  EXPECT_EQ(Preprocess({"1"}, {kImage, kOther}).option(), "1");
}

TEST(Preprocess, OnlyNumbersAboveZeroAreScales) {
  for (const char* text : {"1/255", "0.5", "a=b=2", "1e-3"}) EXPECT_EQ(error_of([&] { check_scale(text); }), "");
  for (const char* text : {"0", "-1", "1/0", "0/0", "nan", "inf", "x", "1/", "image=", "1e-60", "2 3"}) {
    EXPECT_THAT(error_of([&] { check_scale(text); }), HasSubstr("a number above 0")) << text;
  }
}

TEST(Preprocess, ModelsKeepItThroughExport) {
  Model model = network("{ y = Relu(image) }");
  const Preprocess preprocess({"1/255"}, {kImage});
  model.set_metadata(kPreprocess, preprocess.json());
  model.set_metadata("onnx_train.loss", "mse");
  EXPECT_EQ(model.metadata(kPreprocess), R"j({"image":"scale(1/255)"})j");
  const Model inference = strip_training(model);
  EXPECT_EQ(inference.metadata("onnx_train.loss"), "");
  EXPECT_EQ(Preprocess(inference).text(), "image: scale(1/255)");
  EXPECT_DOUBLE_EQ(Preprocess(inference).scale("image"), 1.0 / 255);
  EXPECT_EQ(Preprocess(inference).scale("labels"), 1);
}

TEST(Preprocess, StepsThatAreNotKnownAreRefused) {
  Model model = network("{ y = Relu(image) }");
  for (const char* steps : {R"j({"image": "warp(256), scale(2)"})j", R"j({"image": "resize(0)"})j",
                            R"j({"image": "scale(2"})j", R"j({"image": 2})j", "[]"}) {
    model.set_metadata(kPreprocess, steps);
    EXPECT_THAT(error_of([&] { Preprocess{model}; }), HasSubstr("onnx_train.preprocess")) << steps;
  }
  model.set_metadata(kPreprocess, R"j({"image": "scale(2), scale(1/8)"})j");
  EXPECT_EQ(Preprocess(model).scale("image"), 0.25);
}

TEST(Preprocess, ANoteSaysWhatTakesThePlaceOfTheModelsOwn) {
  Model model = network("{ y = Relu(image) }");
  model.set_metadata(kPreprocess, R"j({"image": "scale(1/255)"})j");
  std::string note;
  EXPECT_EQ(preprocess_of(model, {}, {kImage}, &note).option(), "image=1/255");
  EXPECT_EQ(preprocess_of(model, {{"0.00392157"}}, {kImage}, &note).option(), "image=1/255");
  EXPECT_EQ(note, "");
  EXPECT_EQ(preprocess_of(model, {{"1"}}, {kImage}, &note).option(), "1");
  EXPECT_THAT(note, HasSubstr("trained with: image: scale(1/255)"));
}

TEST(Preprocess, BytesThatEnterANetworkAsTheyAreAreHintedAt) {
  const auto hint = [](const std::string& body, const Tensor& stored, const Preprocess& preprocess = {}) {
    return bytes_hint(Dataset({{"image", stored}}, {kImage}, preprocess), network(body));
  };
  const std::string plain = "{ y = Relu(image) }";
  const Tensor picture = bytes({0, 200}, {1, 2});
  EXPECT_THAT(hint(plain, picture), HasSubstr("'image' holds bytes"));
  EXPECT_EQ(hint(plain, picture, Preprocess({"1/255"}, {kImage})), "");
  EXPECT_EQ(hint(plain, bytes({0, 1}, {1, 2})), "");                           // a mask
  EXPECT_EQ(hint("<float[1] c = {255}> { y = Div(image, c) }", picture), "");  // in the graph already
  EXPECT_EQ(hint(plain, Tensor(DType::kFloat, {1, 2})), "");
}

// ---- What a forward model does not say

TEST(BuildNotes, LayersThatAnExportLeavesOutAreMentioned) {
  const auto subjects = [](const std::string& nodes) {
    std::string text;
    const Model model = from_text(
        "<ir_version: 10, opset_import: [\"\" : 21]> g (float[n,1,4,4] x) => (float[n,1,4,4] y) "
        "<float[1,1,1,1] w = {1}, float[1] b = {1}, float r = {0.5}> { " +
        nodes + " }");
    for (const Finding& f : find_lost_layers(model)) text += f.subject + ". ";
    return text;
  };
  EXPECT_EQ(subjects("y = Conv(x, w, b)"), "dropout. batch norm. ");
  EXPECT_EQ(subjects("y = Conv(x, w)"), "dropout. batch norm, biases. ");
  EXPECT_EQ(subjects("h = Conv(x, w) y = Add(h, b)"), "dropout. batch norm. ");
  EXPECT_EQ(subjects("h = Conv(x, w) y = BatchNormalization(h, b, b, b, b)"), "dropout. ");
  EXPECT_EQ(subjects("h = Conv(x, w, b) y = BatchNormalization(h, b, b, b, b)"), "dropout. ");
  EXPECT_EQ(subjects("h = Conv(x, w) y = Dropout(h, r)"), "batch norm, biases. ");
  EXPECT_EQ(subjects("h = MatMul(x, w) y = Relu(h)"), "");
}

TEST(BuildNotes, BiasesThatAnExportDropsAreMentioned) {
  const auto biases = [](const std::string& nodes) {
    std::string text;
    const Model model = from_text(
        "<ir_version: 10, opset_import: [\"\" : 21]> g (float[n,2] x) => (float[n,2] y) "
        "<float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> { " +
        nodes + " }");
    for (const Finding& f : find_lost_layers(model))
      text += f.subject == "biases" ? concat(f.what, "; ", f.advice) : "";
    return text;
  };
  EXPECT_THAT(biases("h = Gemm(x, w) y = Gemm(h, w)"),
              HasSubstr("2 of 2 linear layers have none; if the module has them"));
  EXPECT_THAT(biases("h = Gemm(x, w) r = Gemm(h, w, b) y = MatMul(r, w)"), HasSubstr("2 of 3 linear layers have none"));
  EXPECT_THAT(biases("h = MatMul(x, w) y = LayerNormalization(h, b)"), HasSubstr("1 of 1 linear layer has none"));
  EXPECT_EQ(biases("h = MatMul(x, w) a = Add(b, h) y = LayerNormalization(a, b)"), "");
  EXPECT_EQ(biases("h = Gemm(x, w, b) y = Gemm(h, w)"), "");   // a last layer, or one of many, may be without
  EXPECT_EQ(biases("h = MatMul(x, w) y = MatMul(h, w)"), "");  // as Llama is made
  EXPECT_EQ(biases("h = MatMul(x, x) y = LayerNormalization(h, b)"), "");
}

TEST(BuildNotes, OfATrainingModelPointToItsForwardModel) {
  const auto imported = [](const Model& model) {
    onnx::ModelProto proto;
    to_proto(model, &proto);
    return import_model(std::move(proto));
  };
  Model model = imported(from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[n,2] x) => (float[n,2] y) "
      "<float[2,2] w = {1, 2, 3, 4}, float r = {0.5}> { h = MatMul(x, w) d = Dropout(h, r) y = Softmax(d) }"));
  BuildOptions options;
  options.loss = "mse(y, target)";
  const auto of_dropout = [&](const Model& forward) {
    std::vector<Finding> notes = build_notes(forward, options);
    std::erase_if(notes, [](const Finding& note) { return note.subject != "dropout"; });
    return notes;
  };
  EXPECT_TRUE(of_dropout(model).empty());
  build_training_model(&model, options);
  const std::vector<Finding> notes = of_dropout(imported(model));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].subject, "dropout");
  EXPECT_THAT(notes[0].advice, HasSubstr("build from the forward model"));
}

TEST(BuildNotes, ATrainingModelKeepsThem) {
  Model model = network("{ y = Relu(image) }");
  EXPECT_TRUE(recorded_notes(model).empty());
  record_notes({{"w", "found", "advice"}, {"\xff", "x", ""}}, &model);
  const std::vector<Finding> notes = recorded_notes(model);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0].advice, "advice");
  EXPECT_EQ(notes_text({notes[0]}, 80), "\nWorth knowing:\n  w: found; advice\n");
  EXPECT_THAT(notes_text(std::vector<Finding>(9, notes[0]), 80, 6), HasSubstr("and 3 more"));
}

// What `loss` doubles of a model that ends in `end`.
std::vector<std::string> doubled(const std::string& end, const std::string& loss) {
  const Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[n,2] x) => (float[n,2] y) <float[2,2] w = {1, 2, 3, 4}, "
      "float one = {1}, float little = {1e-7}, float most = {0.9999999}, float half = {0.5}> { s = MatMul(x, w) " +
      end + " }");
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = loss;
  std::vector<std::string> lines;
  for (const Finding& f : describe_predictions(*model.graph, options)) lines.push_back(f.advice);
  return lines;
}

TEST(BuildNotes, ASoftmaxThatTheLossDoublesIsSaid) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  EXPECT_THAT(doubled("y = Softmax(s)", "cross_entropy"),
              ElementsAre("compare what it makes them of: --loss \"cross_entropy(s)\""));
  EXPECT_THAT(doubled("p = Softmax(s) y = LpNormalization<axis = 1, p = 1>(p)", "0.5*focal(y, t, gamma=1)"),
              ElementsAre(HasSubstr("--loss \"focal(s, t, gamma=1)\"")));
  EXPECT_THAT(doubled("p = Sigmoid(s) y = LpNormalization<axis = 1, p = 1>(p)", "cross_entropy"),
              ElementsAre(HasSubstr("nll(y, log=true)")));
  EXPECT_THAT(doubled("p = Sigmoid(s) q = Sub(one, p) y = Concat<axis = 1>(q, p)", "cross_entropy(y)"),
              ElementsAre(HasSubstr("nll(y, log=true)")));
  EXPECT_THAT(doubled("y = Sigmoid(s)", "bce_with_logits(y, t)"), ElementsAre(HasSubstr("bce_with_logits(s, t)")));
  EXPECT_THAT(doubled("y = Sigmoid(s)", "cross_entropy"), ElementsAre(HasSubstr("bce_with_logits(s)")));
  EXPECT_THAT(doubled("y = Softmax(s)", "nll"), ElementsAre(HasSubstr("nll(y, log=true)")));
  for (const char* loss : {"nll(y, log=true)", "mse(y, t)", "cross_entropy(s)", "multi_margin(y)"})
    EXPECT_THAT(doubled("y = Softmax(s)", loss), IsEmpty()) << loss;
  EXPECT_THAT(doubled("p = Softmax(s) y = Clip(p, little, most)", "cross_entropy"),
              ElementsAre(HasSubstr("cross_entropy(s)")));
  EXPECT_THAT(doubled("p = Softmax(s) y = Clip(p, little)", "cross_entropy"),
              ElementsAre(HasSubstr("cross_entropy(s)")));
  EXPECT_THAT(doubled("p = Softmax(s) y = Clip(p, half, most)", "cross_entropy"), IsEmpty());
  EXPECT_THAT(doubled("y = Softmax<axis = 0>(s)", "cross_entropy"), IsEmpty());  // over the samples
  EXPECT_THAT(doubled("y = LogSoftmax(s)", "cross_entropy"), IsEmpty());         // whose softmax is the same
  EXPECT_THAT(doubled("y = Relu(s)", "cross_entropy"), IsEmpty());
  EXPECT_THAT(doubled("c = ReduceMax <keepdims = 1> (s) y = Add(s, c)", "cross_entropy(c)"),
              ElementsAre(HasSubstr("for numbers --loss mse")));
}

TEST(BuildNotes, WithoutALossScoresBeforeASoftmaxAreCompared) {
  const Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[n,2] x) => (float[n,2] y) <float[2,2] w = {1, 2, 3, 4}> "
      "{ s = MatMul(x, w) y = Softmax(s) }");
  infer_types(model.graph.get());
  const DefaultLoss chosen = default_loss(*model.graph);
  EXPECT_EQ(chosen.loss, "cross_entropy(s)");
  EXPECT_EQ(chosen.finding->subject, "y");
}

TEST(BuildNotes, WithoutALossTheFirstOutputThatFollowsFromAnInputIsCompared) {
  const auto loss_of = [](const std::string& outputs, const std::string& end) {
    const Model model =
        from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[n,2] x) => (float[1] version, " + outputs +
                  ") <float[2,2] w = {1, 2, 3, 4}, float[2,1] v = {1, 2}, float[1] version = {3}> { " + end + " }");
    infer_types(model.graph.get());
    EXPECT_EQ(default_prediction(*model.graph)->name(), "y");
    return default_loss(*model.graph).loss;
  };
  EXPECT_EQ(loss_of("float[n,2] y", "y = MatMul(x, w)"), "cross_entropy");
  EXPECT_EQ(loss_of("float[n,1] y", "y = MatMul(x, v)"), "mse");  // the softmax of one class is 1
  EXPECT_EQ(loss_of("float[n,1] y", "s = MatMul(x, v) y = Sigmoid(s)"), "bce_with_logits(s)");
  EXPECT_EQ(loss_of("float y", "y = ReduceMean <keepdims = 0> (x)"), "y");
}

}  // namespace
}  // namespace onnx_train::preprocess_test
