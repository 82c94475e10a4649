#include "onnx_passes/loss/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/data/dataset.h"
#include "runtime/session/session.h"

namespace onnx_train::loss_test {
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
              testing::AllOf(HasSubstr("there is no loss 'cros_entropy'"), HasSubstr("did you mean 'cross_entropy'?")));
  EXPECT_THAT(message("cros_entropy"), HasSubstr("did you mean 'cross_entropy'?"));
  EXPECT_THAT(message("cross_entropy(label_smothing=0.1)"), HasSubstr("did you mean 'label_smoothing'?"));
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

// ---- Targets and weights have the sizes that the prediction asks for

constexpr const char* kTwoHeads = R"(<ir_version: 10, opset_import: ["" : 21]>
  net (float[batch,3] x, float[batch] flat, float[batch,1] column, float[rows,3] other, int64[batch,3] counts,
       int64[batch,1] classes, float[3] w3, float[4] w4, float[1,3] row)
      => (float[batch,3] cls, float[batch,1] reg, float[rows,3] far) <float[1] half = {0.5}>
  { cls = Exp(x) reg = Mul(column, half) far = Neg(other) })";

Model two_heads(const std::string& expression) {
  Model model = from_text(kTwoHeads);
  infer_types(model.graph.get());
  training_mode(options(expression)).run(model);
  loss(options(expression)).run(model);
  return model;
}

std::string refusal(const std::string& expression) {
  try {
    two_heads(expression);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Loss, ATargetOfTheModelHasThePredictionsShape) {
  for (const char* distance : {"mse", "l1", "huber", "bce_with_logits"}) {
    EXPECT_THAT(
        refusal(concat(distance, "(reg, flat)")),
        HasSubstr(concat("the target 'flat' is float[batch], the prediction 'reg' is float[batch,1]; ", distance,
                         " compares both element by element: reshape it in the model to float[batch,1], or "
                         "take a name that the model does not have: it becomes an input of that type")));
  }
  EXPECT_THAT(refusal("mse(cls, column)"),
              HasSubstr("column 10: the target 'column' is float[batch,1], the prediction"));
  EXPECT_THAT(refusal("mse(flat, column)"), HasSubstr("the target 'column' is float[batch,1]"));
  EXPECT_THAT(refusal("cross_entropy(cls, classes)"), HasSubstr("the target 'classes' is int64[batch,1]"));
  EXPECT_THAT(refusal("nll(cls, classes)"), HasSubstr("class indices are integers, without the class axis"));
  EXPECT_THAT(refusal("cross_entropy(cls, column)"), HasSubstr("probabilities are floats of the prediction's shape"));
  EXPECT_EQ(refusal("mse(cls, counts) + mse(cls, x)"), "no error");
}

TEST(Loss, AWeightHasTheSizesOfWhatItWeighs) {
  EXPECT_THAT(refusal("cross_entropy(cls, y, weight=w4)"),
              HasSubstr("column 30: the weight 'w4' is float[4], the prediction 'cls' is float[batch,3]; it has one "
                        "float for each class: reshape it in the model to float[3]"));
  EXPECT_THAT(refusal("cross_entropy(cls, y, weight=row)"), HasSubstr("the weight 'row' is float[1,3]"));
  EXPECT_THAT(refusal("nll(cls, y, weight=classes)"), HasSubstr("the weight 'classes' is int64[batch,1]"));
  EXPECT_THAT(refusal("bce_with_logits(cls, y, pos_weight=w4)"), HasSubstr("it must broadcast to the prediction"));
  EXPECT_THAT(refusal("bce_with_logits(reg, y, weight=x)"), HasSubstr("the weight 'x' is float[batch,3]"));
  for (const char* weight : {"w3", "row", "column", "x", "half"}) {
    EXPECT_EQ(refusal(concat("bce_with_logits(cls, y, weight=", weight, ", pos_weight=", weight, ")")), "no error");
  }
  EXPECT_EQ(refusal("cross_entropy(cls, y, weight=w3)"), "no error");
}

TEST(Loss, TargetsLeftOpenShareANameOnlyIfTheyAreOfOneType) {
  EXPECT_EQ(two_heads("cross_entropy(cls) + mse(reg)").metadata("onnx_train.loss"),
            "cross_entropy(cls, labels_cls, axis=1) + mse(reg, labels_reg)");
  EXPECT_EQ(input_type(two_heads("cross_entropy(cls) + mse(reg)"), "labels_reg"), "float[batch,1]");
  EXPECT_EQ(two_heads("cross_entropy(cls) + nll(x)").metadata("onnx_train.loss"),
            "cross_entropy(cls, labels, axis=1) + nll(x, labels, axis=1)");
  EXPECT_EQ(two_heads("cross_entropy(cls) + mse(reg, y)").metadata("onnx_train.loss"),
            "cross_entropy(cls, labels, axis=1) + mse(reg, y)");
}

TEST(Loss, TargetsLeftOpenGiveWayToValuesOfTheModel) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[batch,3] x) => (float[batch,3] logits) { labels = Exp(x) labels_2 = Neg(labels) logits = Abs(labels_2) })");
  infer_types(model.graph.get());
  training_mode(options("mse")).run(model);
  loss(options("mse")).run(model);
  EXPECT_EQ(model.metadata("onnx_train.loss"), "mse(logits, labels_3)");
  EXPECT_EQ(input_type(model, "labels_3"), "float[batch,3]");
}

TEST(Loss, OneNameIsATargetOfOneType) {
  EXPECT_THAT(refusal("cross_entropy(cls, y) + mse(reg, y)"),
              HasSubstr("column 34: 'y' is int64[batch] for an earlier term, and would be float[batch,1] for this one; "
                        "give each its own name, name the target: mse(reg, my_labels)"));
  EXPECT_THAT(refusal("cross_entropy(cls) + mse(cls)"), HasSubstr("'labels_cls' is int64[batch] for an earlier term"));
  EXPECT_THAT(refusal("cross_entropy(cls, y, weight=y)"), HasSubstr("'y' is int64[batch] for an earlier"));
}

// What a plan says to targets of other sizes, which types with symbols allow.
std::string plan_refusal(const std::string& expression, const std::map<std::string, Shape>& shapes) {
  Model model = two_heads(expression);
  TensorMap inputs;
  for (const InputSpec& spec : entry_inputs(model, "evaluate")) {
    Shape shape;
    const auto given = shapes.find(spec.name);
    for (const Dim& d : *spec.type.dims) shape.push_back(d.known() ? d.value() : d.symbol() == "batch" ? 4 : 1);
    inputs[spec.name] = Tensor(spec.type.dtype, given == shapes.end() ? shape : given->second);
  }
  try {
    Session(std::move(model)).run("evaluate", inputs);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Loss, SizesThatOnlyDataTellsAreComparedByThePlan) {
  EXPECT_THAT(plan_refusal("mse(cls, other)", {}), HasSubstr("'other' has the sizes that 'cls' asks for"));
  EXPECT_THAT(plan_refusal("mse(far, x)", {}), HasSubstr("'x' has the sizes that 'far' asks for"));
  EXPECT_THAT(plan_refusal("bce_with_logits(far, y, weight=x)", {}), HasSubstr("'x' has the sizes"));
  EXPECT_THAT(plan_refusal("mse(cls, y)", {{"y", {1, 3}}}), HasSubstr("'batch'"));
  EXPECT_EQ(plan_refusal("mse(cls, other)", {{"other", {4, 3}}}), "no error");
  EXPECT_EQ(plan_refusal("bce_with_logits(cls, other, weight=column)", {{"other", {4, 3}}}), "no error");
}

TEST(Loss, OutputsAreDescribed) {
  EXPECT_EQ(
      with_loss("cross_entropy").metadata("onnx_train.outputs"),
      R"({"loss": "mean", "loss_count": "sum", "accuracy": "mean", "accuracy_count": "sum", "grad_norm": "last"})");
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
              HasSubstr("the target 'ids' is int64[], the prediction 'logits' is float[batch,3]"));
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
}  // namespace onnx_train::loss_test
