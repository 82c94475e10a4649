#include "onnx_passes/passes/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/passes/loss_expression.h"
#include "onnx_passes/passes/training_mode.h"
#include "runtime/session.h"
#include "tests/golden.h"

namespace onnx_train {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = R"(<ir_version: 10, opset_import: ["" : 21]>
  net (float[batch,3] x, float[batch,5,3] sequence) => (float[batch,3] logits, float[batch,5,3] tokens, float mean)
  { logits = Exp(x) tokens = Neg(sequence) mean = ReduceMean<keepdims = 0>(x) ids = Size(x) })";

Model with_loss(const std::string& expression) {
  Model model = from_text(kModel);
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = expression;
  training_mode(options).run(model);
  loss(options).run(model);
  return model;
}

std::string resolved(const std::string& expression) { return with_loss(expression).metadata("onnx_train.loss"); }

std::string message(const std::string& expression) {
  try {
    with_loss(expression);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

BuildOptions options(const std::string& expression) {
  BuildOptions options;
  options.loss = expression;
  return options;
}

std::string input_type(const Model& model, const std::string& name) {
  return to_string(model.entry_points[0].algorithm->find(name)->type());
}

// Names that a file may hold; each in quotes of either kind.
TEST(Loss, EveryNameCanBeWritten) {
  const std::string names[] = {"a\"b",      "a'b", "it's \"x\"", "'", "\"", "''\"\"", "a b", "a\nb", "a,b",
                               "f(x, y)=1", "\\",  "a\\'b",      " ", "é",  "a''b",   "+",   "0",    "mse"};
  for (const std::string& name : names) {
    Model model = from_text(kModel);
    model.graph->rename(model.graph->find("logits"), name);
    infer_types(model.graph.get());
    for (const char quote : {'\'', '"'}) {
      std::string quoted(1, quote);
      for (char c : name) quoted += c == quote ? std::string(2, c) : std::string(1, c);
      BuildOptions o;
      o.loss = concat("0.5*mse(", quoted, quote, ", ", quoted, " of target", quote, ") + l1(", quoted, quote, ")");
      Model built = clone(model);
      training_mode(o).run(built);
      loss(o).run(built);
      const auto terms = parse_loss(built.metadata("onnx_train.loss"));
      ASSERT_EQ(terms.size(), 2u) << o.loss;
      EXPECT_EQ(terms[0].arguments.names[0].text, name) << o.loss;
      EXPECT_EQ(terms[0].arguments.names[1].text, name + " of target") << o.loss;
      EXPECT_EQ(terms[1].arguments.names[0].text, name) << o.loss;
      o.loss = built.metadata("onnx_train.loss");
      Model again = clone(model);
      training_mode(o).run(again);
      loss(o).run(again);
      EXPECT_EQ(again.metadata("onnx_train.loss"), o.loss);
    }
  }
}

TEST(Loss, QuotesThatAreNeverClosedAreErrors) {
  for (const char* text : {"mse('logits)", "mse('logits'')", "mse(\"\"\")", "'"}) {
    EXPECT_THAT(message(text), HasSubstr("is never closed")) << text;
  }
}

TEST(Loss, MisspeltNamesNameTheOneThatIsMeant) {
  EXPECT_THAT(message("cros_entropy(logits)"),
              HasSubstr("there is no loss 'cros_entropy'; did you mean 'cross_entropy'?"));
  EXPECT_THAT(message("cros_entropy"), HasSubstr("did you mean 'cross_entropy'?"));
  EXPECT_THAT(message("cross_entropy(label_smothing=0.1)"), HasSubstr("did you mean 'label_smoothing'?"));
}

TEST(Loss, CrossEntropyWithDropout) {
  const BuildOptions o = options("cross_entropy");
  expect_golden("loss_cross_entropy", {training_mode(o), loss(o)});
}

TEST(Loss, SumOfSeveral) {
  const BuildOptions o =
      options("0.7*cross_entropy(logits, labels, label_smoothing=0.1) + 0.3*mse('/aux/out', target)");
  expect_golden("loss_sum", {training_mode(o), loss(o)});
}

TEST(Loss, OpenEndsAreFilledIn) {
  EXPECT_EQ(resolved("cross_entropy"), "cross_entropy(logits, labels, axis=1)");
  EXPECT_EQ(resolved("cross_entropy(tokens)"), "cross_entropy(tokens, labels, axis=2)");
  EXPECT_EQ(resolved("cross_entropy(tokens, words, axis=-2, reduction=sum)"),
            "cross_entropy(tokens, words, axis=1, reduction=sum)");
  EXPECT_EQ(resolved("-2 * mse( logits ,'a b') - 0.5*mean"), "-2*mse(logits, 'a b') - 0.5*mean");
  EXPECT_EQ(resolved("cross_entropy(probabilities=true)"), "cross_entropy(logits, labels, axis=1, probabilities=1)");
  EXPECT_EQ(resolved("mean"), "mean");
}

TEST(Loss, TargetsHaveThePredictionsDimensions) {
  EXPECT_EQ(input_type(with_loss("cross_entropy"), "labels"), "int64[batch]");
  EXPECT_EQ(input_type(with_loss("cross_entropy(tokens)"), "labels"), "int64[batch,5]");
  EXPECT_EQ(input_type(with_loss("nll(tokens, y, axis=1)"), "y"), "int64[batch,3]");
  EXPECT_EQ(input_type(with_loss("huber(tokens)"), "labels"), "float[batch,5,3]");
  EXPECT_EQ(input_type(with_loss("cross_entropy(weight=importance)"), "importance"), "float[3]");
}

TEST(Loss, ATargetMayBeAValueOfTheModel) {
  const Model model = with_loss("mse(logits, x)");
  EXPECT_EQ(model.entry_points[0].algorithm->inputs().size(), 0u);
}

TEST(Loss, SeveralLossesShareATarget) {
  const Model model = with_loss("cross_entropy(logits, labels) + 0.1*nll(logits, labels)");
  EXPECT_EQ(model.entry_points[0].algorithm->inputs().size(), 1u);
}

TEST(Loss, OutputsAreDescribed) {
  EXPECT_EQ(with_loss("cross_entropy").metadata("onnx_train.outputs"),
            R"({"loss": "mean", "accuracy": "mean", "grad_norm": "last"})");
  EXPECT_EQ(with_loss("mse(reduction=sum)").metadata("onnx_train.outputs"), R"({"loss": "sum", "grad_norm": "last"})");
}

TEST(Loss, MistakesPointAtTheColumn) {
  EXPECT_EQ(message("cross_entropy(logits"),
            "--loss \"cross_entropy(logits\", column 21: expected ')' at the end of the arguments, found the end");
  EXPECT_THAT(message("mse(logits) mse"), HasSubstr("column 13: expected '+' between two losses, found 'm'"));
  EXPECT_THAT(message("cross_entopy"),
              HasSubstr("column 1: 'cross_entopy' is not a loss or an output of the model; did "
                        "you mean 'cross_entropy'?"));
  EXPECT_THAT(message("cross_entropy(logit)"), HasSubstr("column 15: 'logit' is not a value of the model; did you mean "
                                                         "'logits'?"));
  EXPECT_THAT(message("mse + 0.3 l1"), HasSubstr("column 11: expected '*' between a number and a loss"));
  EXPECT_THAT(message("mse(delta=1)"), HasSubstr("column 5: mse has no option 'delta'; it has reduction"));
  EXPECT_THAT(message("huber(delta=-1)"), HasSubstr("column 13: 'delta' must be greater than 0"));
  EXPECT_THAT(message("cross_entropy(label_smoothing=2)"), HasSubstr("column 31"));
  EXPECT_THAT(message("cross_entropy(axis=4)"), HasSubstr("column 20: axis 4 is outside 'logits', float[batch,3]"));
  EXPECT_THAT(message("cross_entropy(probabilities=-inf)"), HasSubstr("column 29: expected a number"));
  EXPECT_THAT(message("cross_entropy(logits, ids)"),
              HasSubstr("the labels 'ids' are int64[], the prediction is float"));
  EXPECT_THAT(message("nll(logits, mean)"), HasSubstr("class indices are integers"));
  EXPECT_THAT(message("mse(reduction=none)"), HasSubstr("the reduction is mean or sum"));
  EXPECT_THAT(message("mse(logits, a, b)"), HasSubstr("column 16: mse takes a prediction and a target"));
  EXPECT_THAT(message("mse('logits)"), HasSubstr("column 5: the quote ' is never closed"));
  EXPECT_THAT(message("logits"), HasSubstr("'logits' is float[batch,3]; an output that is the loss must be one float"));
  EXPECT_THAT(message("mse(ids)"), HasSubstr("the prediction 'ids' is int64[]; it must be a float tensor"));
  EXPECT_THAT(message("foo(logits)"), HasSubstr("there is no loss 'foo'; there is cross_entropy, nll"));
  EXPECT_THAT(message(""), HasSubstr("column 1: expected a loss or an output of the model, found the end"));
  EXPECT_THAT(message("mse(reduction=sum, logits)"), HasSubstr("column 20: 'logits' comes after an option"));
}

TEST(Loss, LabelsOutOfRangeAreNamed) {
  Session session(with_loss("cross_entropy"));
  const Tensor x = Tensor::of<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  try {
    session.run("evaluate", {{"x", x}, {"labels", Tensor::of<int64_t>({2}, {1, 3})}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("label 3 at position 1 is outside the 3 classes 0 to 2"));
  }
}

TEST(Loss, AccuracyLeavesOutIgnoredLabels) {
  Session session(with_loss("cross_entropy"));
  const Tensor x = Tensor::of<float>({4, 3}, {3, 1, 2, 0, 5, 1, 1, 2, 9, 9, 1, 1});
  const Tensor labels = Tensor::of<int64_t>({4}, {0, 1, 1, -100});
  const auto& out = session.run("evaluate", {{"x", x}, {"labels", labels}});
  EXPECT_FLOAT_EQ(static_cast<float>(out.at("accuracy").at(0)), 2.0f / 3);
}

}  // namespace
}  // namespace onnx_train
