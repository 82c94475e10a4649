// Every mean is a sum over a count: accumulated and evaluated batches of any sizes and labels equal one batch of all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/training/trainer.h"

namespace onnx_train::means_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kSamples = 11;

// The second output depends on w2 alone, so that the terms of a loss have different weights.
constexpr const char* kNetwork = R"(<ir_version: 10, opset_import: ["" : 21]>
  g (double[batch,2] x) => (double[batch,3] logits, double[batch,3] log_p, double[batch,2] aux, double own)
  <double[2,3] w = {0.5,-0.3,0.8, 0.2,0.7,-0.6}, double[2,2] w2 = {0.1,-0.2, 0.4,0.3}, int64[1] ones = {1}>
  {
    logits = MatMul(x, w)
    log_p = LogSoftmax <axis = 1> (logits)
    aux = MatMul(x, w2)
    squared = Mul(logits, logits)
    own = ReduceMean <keepdims = 0> (squared)
  })";

Model build(const std::string& loss, BuildOptions options = {}) {
  Model model = from_text(kNetwork);
  infer_types(model.graph.get());
  options.loss = loss;
  options.optimizer = "sgd(lr=0.5)";
  options.train = {"w", "w2"};
  build_training_model(&model, options);
  return model;
}

double number(int64_t i) { return 0.37 * static_cast<double>(i * 7 % 11) - 1.7; }

// All that any of the losses reads; labels of samples 3 to 7 are ignored.
TensorMap arrays() {
  TensorMap all = {{"x", Tensor(DType::kDouble, {kSamples, 2})},
                   {"labels", Tensor(DType::kInt64, {kSamples})},
                   {"target", Tensor(DType::kDouble, {kSamples, 2})},
                   {"p", Tensor::of<double>({2}, {0.5, 3})},
                   {"c", Tensor::of<double>({3}, {0.2, 1, 2.5})}};
  for (int64_t i = 0; i < 2 * kSamples; ++i) {
    all["x"].set(i, number(i));
    all["target"].set(i, number(3 * i + 1));
  }
  for (int64_t i = 0; i < kSamples; ++i) {
    all["labels"].set(i, i >= 3 && i < 8 ? -100 : static_cast<double>(i % 3));
  }
  return all;
}

// The samples [first, first + count) of what the entry point reads.
TensorMap batch(const Session& session, const EntryName& entry, int64_t first, int64_t count) {
  const TensorMap all = arrays();
  TensorMap chosen;
  for (const InputSpec& spec : entry_inputs(session.model(), entry)) {
    if (spec.has_default) continue;
    const Tensor& array = all.at(spec.name);
    if (array.shape()[0] != kSamples) {
      chosen[spec.name] = array;
      continue;
    }
    Shape shape = array.shape();
    shape[0] = count;
    Tensor rows(array.dtype(), shape);
    const int64_t width = array.size() / kSamples;
    for (int64_t i = 0; i < rows.size(); ++i) rows.set(i, array.at(first * width + i));
    chosen[spec.name] = rows;
  }
  return chosen;
}

constexpr const char* kLosses[] = {
    "cross_entropy",
    "cross_entropy(label_smoothing=0.1)",
    "cross_entropy(weight=c)",
    "cross_entropy(weight=c, label_smoothing=0.2)",
    "nll(log_p)",
    "nll(log_p, weight=c)",
    "bce_with_logits(aux, target, pos_weight=p)",
    "mse(aux, target)",
    "mse(aux, target, reduction=sum)",
    "own",
    "0.7*cross_entropy + 0.3*mse(aux, target) - 0.1*own",
    "cross_entropy(weight=c) + 2*nll(log_p) + 0.1*l1(aux, target, reduction=sum)",
};

class Means : public testing::TestWithParam<const char*> {};

// The last batch is short, the second one has no labels that count, and counts differ.
TEST_P(Means, AccumulatedBatchesEqualOneBatch) {
  Session whole(build(GetParam()));
  BuildOptions options;
  options.accumulate = true;
  Session parts(build(GetParam(), options));
  for (int step = 0; step < 2; ++step) {
    const double norm = whole.run("step", batch(whole, "step", 0, kSamples)).at("grad_norm").at(0);
    for (const auto& [first, count] : {std::pair(0, 4), {4, 3}, {7, 3}, {10, 1}}) {
      parts.run("accumulate", batch(parts, "accumulate", first, count));
    }
    EXPECT_NEAR(parts.run("apply", {}).at("grad_norm").at(0), norm, 1e-12 * norm);
  }
  for (const char* weight : {"w", "w2"}) {
    const Tensor a = parts.contents(weight), b = whole.contents(weight);
    for (int64_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a.at(i), b.at(i), 1e-12) << weight << ", element " << i;
  }
}

TEST_P(Means, EvaluationDoesNotDependOnTheBatchSize) {
  Session session(build(GetParam()));
  const Dataset data(arrays(), entry_inputs(session.model(), "evaluate"));
  const auto whole = session.run("evaluate", batch(session, "evaluate", 0, kSamples));
  const double loss = whole.at("loss").at(0);
  for (const int64_t size : {kSamples, int64_t{4}, int64_t{3}, int64_t{1}}) {
    const EvaluationResult result = evaluate(&session, data, size);
    EXPECT_TRUE(result.notes.empty());
    EXPECT_NEAR(result.metrics.at("loss"), loss, 1e-12 * std::abs(loss)) << size;
    const auto accuracy = whole.find("accuracy");
    EXPECT_EQ(result.metrics.size(), accuracy == whole.end() ? 1 : 2);
    if (accuracy == whole.end()) continue;
    const double counted = whole.at("accuracy_count").at(0), right = std::round(accuracy->second.at(0) * counted);
    EXPECT_EQ(result.metrics.at("accuracy"), right / counted) << size;  // float32 has no thirds
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, Means, testing::ValuesIn(kLosses));

TEST(Means, BatchesMayCountTheSame) {
  BuildOptions options;
  options.accumulate = options.mean_of_batches = true;
  Session parts(build("cross_entropy", options));
  const auto gradient = [](int64_t first, int64_t count) {
    Session fresh(build("cross_entropy"));
    const Tensor before = fresh.contents("w").clone();
    fresh.run("step", batch(fresh, "step", first, count));
    std::vector<double> g;
    for (int64_t i = 0; i < before.size(); ++i) g.push_back((before.at(i) - fresh.contents("w").at(i)) / 0.5);
    return g;
  };
  const Tensor before = parts.contents("w").clone();
  const auto a = gradient(0, 3), b = gradient(8, 1);
  for (const auto& [first, count] : {std::pair(0, 3), {3, 2}, {8, 1}}) {
    parts.run("accumulate", batch(parts, "accumulate", first, count));
  }
  parts.run("apply", {});
  for (int64_t i = 0; i < before.size(); ++i) {
    const auto k = static_cast<size_t>(i);
    EXPECT_NEAR((before.at(i) - parts.contents("w").at(i)) / 0.5, (a[k] + b[k]) / 2, 1e-12);
  }
}

TEST(Means, ABatchWithoutLabelsHasNeitherLossNorGradient) {
  for (const char* loss : {"cross_entropy", "cross_entropy(weight=c, label_smoothing=0.1)", "nll(log_p, weight=c)"}) {
    Session session(build(loss));
    const Tensor before = session.contents("w").clone();
    const auto& out = session.run("step", batch(session, "step", 3, 5));
    EXPECT_EQ(out.at("loss").at(0), 0) << loss;
    EXPECT_EQ(out.at("loss_count").at(0), 0) << loss;
    EXPECT_EQ(out.at("grad_norm").at(0), 0) << loss;
    for (int64_t i = 0; i < before.size(); ++i) EXPECT_EQ(session.contents("w").at(i), before.at(i)) << loss;
  }
}

struct Record : TrainerEvents {
  std::vector<StepReport> steps;
  std::vector<EvaluationReport> evaluations;
  std::vector<std::string> notes;
  void on_step(const StepReport& r) override { steps.push_back(r); }
  void on_evaluation(const EvaluationReport& r) override { evaluations.push_back(r); }
  void on_note(const std::string& text) override { notes.push_back(text); }
};

Record train(Session* session, const TensorMap& training, const TensorMap* evaluation, TrainerOptions options) {
  options.epochs = 2;
  options.shuffle = false;
  const Dataset data(training, entry_inputs(session->model(), training_entry(*session)));
  std::optional<Dataset> eval_data;
  if (evaluation) eval_data.emplace(*evaluation, entry_inputs(session->model(), "evaluate"));
  Record record;
  Trainer trainer(session, &data, eval_data ? &*eval_data : nullptr, options);
  trainer.run(&record, std::atomic<bool>{false});
  return record;
}

TEST(Means, TheTrainingLossOfAnEpochIsOverItsLabels) {
  BuildOptions build_options;
  build_options.accumulate = true;
  Session session(build("cross_entropy", build_options));
  TrainerOptions options;
  options.batch_size = 2;
  options.accumulate = 2;
  options.schedule.peak = 1e-300;  // the weights stay
  const Record record = train(&session, arrays(), nullptr, options);
  const double whole = session.run("evaluate", batch(session, "evaluate", 0, kSamples)).at("loss").at(0);
  ASSERT_EQ(record.evaluations.size(), 2);
  EXPECT_NEAR(record.evaluations[0].train_loss, whole, 1e-12);
  EXPECT_NEAR(record.evaluations[1].train_loss, whole, 1e-12);
  EXPECT_NEAR(record.steps[0].loss, session.run("evaluate", batch(session, "evaluate", 0, 4)).at("loss").at(0), 1e-12);
  EXPECT_EQ(record.steps[1].loss, 0);  // samples 4 to 7
  EXPECT_FALSE(record.steps[1].accuracy);
  ASSERT_EQ(record.notes.size(), 1);
  EXPECT_THAT(record.notes[0], HasSubstr("step 2: nothing counts"));
}

TEST(Means, WhatHasNoFiniteLossIsNotTheBest) {
  TensorMap nothing = arrays(), infinite = arrays();
  for (int64_t i = 0; i < kSamples; ++i) nothing["labels"].set(i, -100);
  infinite["x"].set(0, NAN);
  const std::string folder = testing::TempDir() + "means_without_loss";
  for (const auto& [evaluation, said] : {std::pair(&nothing, "so there is no loss"), {&infinite, "is not a number"}}) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    Session session(build("cross_entropy"));
    TrainerOptions options;
    options.batch_size = 3;
    options.folder = folder;
    const Record record = train(&session, arrays(), evaluation, options);
    ASSERT_EQ(record.evaluations.size(), 2);
    for (const EvaluationReport& report : record.evaluations) {
      EXPECT_FALSE(report.best);
      EXPECT_TRUE(std::isnan(report.evaluation.at("loss")));
    }
    EXPECT_TRUE(std::filesystem::exists(folder + "/last.onnx"));
    EXPECT_FALSE(std::filesystem::exists(folder + "/best.onnx"));
    EXPECT_THAT(record.notes, testing::Contains(HasSubstr(said)));
  }
}

TEST(Means, AreSaid) {
  BuildOptions options;
  options.accumulate = true;
  const Model labels = build("cross_entropy", options), mixed = build("own + cross_entropy(weight=c)", options);
  EXPECT_EQ(labels.metadata("onnx_train.mean_over"), "labels");
  EXPECT_EQ(labels.metadata("onnx_train.accumulate"), "the mean over all that its batches count");
  EXPECT_EQ(mixed.metadata("onnx_train.mean_over"), "samples (what the loss counts is not known), weights of labels");
  options.mean_of_batches = true;
  EXPECT_EQ(build("nll(log_p)", options).metadata("onnx_train.accumulate"), "the mean of its batches' means");
  EXPECT_EQ(build("mse(aux, reduction=sum)", options).metadata("onnx_train.accumulate"), "the sum of its batches");
}

}  // namespace
}  // namespace onnx_train::means_test
