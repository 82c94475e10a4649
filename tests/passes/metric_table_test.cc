// What follows from the table of metrics: grammar, messages, what a metric takes from the loss, documentation.
#include "onnx_passes/metrics/metric_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/metrics/metrics.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/training/training_mode.h"
#include "tests/support/error_of.h"
#include "tests/support/golden.h"

namespace onnx_train::metric_table_test {
namespace {

using testing::HasSubstr;

Model measured(const std::string& expression, const std::vector<std::string>& names) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[batch,3] x, float[batch,4] aux, float[batch,5,6,7] image) =>
        (float[batch,3] logits, float[batch,4] wide, float[batch,5,6,7] masks, float[batch,3] p)
    { logits = Exp(x) wide = Exp(aux) masks = Neg(image) p = Softmax(x) })");
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = expression;
  options.metrics = names;
  training_mode(options).run(model);
  loss(options).run(model);
  metrics(options).run(model);
  return model;
}

std::string recorded(const std::string& expression, const std::vector<std::string>& names) {
  return measured(expression, names).metadata(kMetrics);
}
std::string error(const std::string& expression, const std::vector<std::string>& names) {
  return error_of([&] { measured(expression, names); });
}
std::vector<std::string> statistics(const Model& model) {
  std::vector<std::string> found;
  for (const Value* output : model.find_entry_point("evaluate")->algorithm->outputs()) {
    if (output->has_role(roles::kStatistic)) found.push_back(output->name() + " " + to_string(output->type()));
  }
  return found;
}

TEST(MetricTable, NamesAndOptionsAreUnique) {
  std::set<std::string> names;
  for (const MetricRow& row : metric_rows()) {
    EXPECT_TRUE(names.insert(row.term.name).second) << row.term.name;
    std::set<std::string> options;
    for (const LossOption& option : row.term.options) EXPECT_TRUE(options.insert(option.name).second) << option.name;
    EXPECT_TRUE(row.statistic && row.finish) << row.term.name;
    EXPECT_EQ(row.term.arguments.size(), 2u) << row.term.name;
  }
}

TEST(MetricTable, IsTheReferenceInTheDocumentation) { expect_reference("metrics.md", metric_reference()); }

TEST(MetricTable, AMetricTakesPredictionTargetAxisAndIgnoredLabelsOfTheLoss) {
  EXPECT_EQ(recorded("mse(wide, goal) + cross_entropy(masks, m, ignore_index=255)", {"f1", "mae"}),
            json_list({"f1(masks, m, axis=1, ignore_index=255)", "mae(wide, goal)"}));
  EXPECT_EQ(
      recorded("cross_entropy(masks, m, ignore_index=255)", {"iou(masks, m)", "top1=top_k(masks, k=1)"}),
      json_list({"iou(masks, m, axis=1, ignore_index=255)", "top1=top_k(masks, m, axis=1, k=1, ignore_index=255)"}));
  EXPECT_EQ(recorded("bce_with_logits(logits)", {"f1"}), json_list({"f1(logits, labels, axis=1, multilabel=1)"}));
  EXPECT_EQ(recorded("cross_entropy(logits)", {"auc(p, labels)"}),
            json_list({"auc(p, labels, axis=1, probabilities=1)"}));
  EXPECT_EQ(recorded("cross_entropy(logits, sample_weight=w)", {"f1"}),
            json_list({"f1(logits, labels, axis=1, ignore_index=-100)"}));
}

TEST(MetricTable, MetricsOfTheSameCountsShareThem) {
  const Model model = measured("cross_entropy(logits)", {"f1", "micro=f1(average=micro)", "iou", "confusion_matrix"});
  EXPECT_EQ(statistics(model), (std::vector<std::string>{"counts double[4,3]", "confusion double[3,3]"}));
  EXPECT_THAT(model.metadata("onnx_train.outputs"), HasSubstr(R"("grad_norm": "last", "statistic": "sum"})"));
}

TEST(MetricTable, TheAccuracyOfTheLossIsNotAddedAgain) {
  EXPECT_EQ(recorded("cross_entropy(logits)", {"accuracy"}), "");
  EXPECT_THAT(error("cross_entropy(logits)", {"accuracy(logits, labels, sample_weight=w)"}),
              HasSubstr("the evaluation has a 'accuracy' already; give this one a name: other=accuracy("));
  EXPECT_EQ(recorded("cross_entropy(logits)", {"weighted=accuracy(sample_weight=w)"}),
            json_list({"weighted=accuracy(logits, labels, axis=1, sample_weight=w, ignore_index=-100)"}));
}

TEST(MetricTable, MessagesNameWhatAMetricTakes) {
  EXPECT_THAT(error("mse(wide)", {"f2"}), HasSubstr("--metric \"f2\", column 1: there is no metric 'f2'"));
  EXPECT_THAT(error("mse(wide)", {"acuracy"}), HasSubstr("did you mean 'accuracy'?"));
  EXPECT_THAT(error("mse(wide)", {"f1"}),
              HasSubstr("the loss has no prediction and target that f1 can take; name them: f1(logits, labels)"));
  EXPECT_THAT(error("cross_entropy(logits)", {"f1(average=mean)"}),
              HasSubstr("column 12: 'average' is one of macro, micro, weighted, binary"));
  EXPECT_THAT(error("cross_entropy(logits)", {"f1(average=binary)"}),
              HasSubstr("at most two classes, and 'logits' has 3"));
  EXPECT_THAT(error("cross_entropy(logits)", {"top_k(k=0)"}), HasSubstr("'k' must be 1 or greater"));
  EXPECT_THAT(error("cross_entropy(logits)", {"auc(bins=1)"}), HasSubstr("'bins' must be a whole number from 2"));
  EXPECT_THAT(error("cross_entropy(logits)", {"f1, iou"}), HasSubstr("give --metric once for each"));
  EXPECT_THAT(error("cross_entropy(logits)", {"f1", "f1(average=micro)"}), HasSubstr("has a 'f1' already"));
  EXPECT_THAT(error("cross_entropy(logits)", {"mae(logits, labels)"}),
              HasSubstr("the target 'labels' is int64[batch], the prediction 'logits' is float[batch,3]"));
  EXPECT_THAT(error("bce_with_logits(logits)", {"top_k(logits, labels)"}), HasSubstr("class indices are integers"));
}

}  // namespace
}  // namespace onnx_train::metric_table_test
