#include "runtime/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/text/expression.h"
#include "runtime/runs/utilization.h"
#include "runtime/training/controls.h"
#include "tests/support/empty_model.h"
#include "tests/support/error_of.h"

namespace onnx_train::trainer_test {
namespace {

using testing::HasSubstr;

// predict: y = x w. loss = mean((y - target)^2), the same in step and evaluate; step moves w against its gradient.
Model make_training_model() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder predict(&graph);
  const Var x = predict.var(graph.add_input("x", {DType::kFloat, Dims{"N", 3}}));
  Value* w = graph.add_initializer("w", Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  predict.set_name("y");
  const Var y = matmul(x, predict.var(w));
  graph.add_output(y.value());
  for (const char* name : {"step", "evaluate"}) {
    EntryPoint& entry = model.add_entry_point(name);
    Graph& algorithm = *entry.algorithm;
    Builder b(&algorithm);
    const Var target = b.var(algorithm.add_input("target", {DType::kFloat, Dims{"N", 2}}));
    const Var error = b.var(y.value()) - target;
    const Var loss = reduce_mean(error * error, {0, 1}, false);
    algorithm.rename(loss.value(), "loss");
    algorithm.add_output(loss.value());
    if (entry.name() == "evaluate") continue;
    const Var rate = b.var(algorithm.add_input("learning_rate", {DType::kFloat, Dims{}}));
    algorithm.set_initializer(rate.value(), Tensor::scalar(0.01f));
    const Var next = b.var(w) - rate * matmul(transpose_last(b.var(x.value())), error);
    algorithm.rename(next.value(), "next/w");
    algorithm.add_output(next.value());
    entry.update_bindings.push_back({w, next.value()});
  }
  return model;
}

Dataset make_data(int64_t n, const Model& model) {
  Tensor x(DType::kFloat, {n, 3}), target(DType::kFloat, {n, 2});
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, 0.1 * static_cast<double>(i % 7) - 0.2);
  for (int64_t i = 0; i < target.size(); ++i) target.set(i, 0.3 * static_cast<double>(i % 5));
  return Dataset({{"x", x}, {"target", target}}, entry_inputs(model, "step"));
}

std::string new_folder(const std::string& name) {
  const std::string path = testing::TempDir() + "trainer_" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Record : TrainerEvents {
  std::vector<double> losses;
  std::vector<EvaluationReport> epochs;
  std::atomic<bool>* interrupt = nullptr;
  int64_t interrupt_after = -1;
  void on_step(const StepReport& r) override {
    losses.push_back(r.loss);
    if (r.step == interrupt_after) *interrupt = true;
  }
  void on_evaluation(const EvaluationReport& r) override { epochs.push_back(r); }
};

// Trains from the start, or from the folder's last checkpoint.
Record train(const TrainerOptions& options, bool resume, int64_t interrupt_after = -1, StopReason* reason = nullptr) {
  Session session(resume ? load_training_model(options.folder + "/last.onnx") : make_training_model());
  const Dataset data = make_data(10, session.model());
  Trainer trainer(&session, &data, &data, options);
  if (resume) trainer.resume(*checkpoint_position(session.model()));
  Record record;
  std::atomic<bool> interrupt{false};
  record.interrupt = &interrupt;
  record.interrupt_after = interrupt_after;
  const StopReason stopped = trainer.run(&record, interrupt);
  if (reason) *reason = stopped;
  return record;
}

TrainerOptions options_for(const std::string& folder) {
  TrainerOptions options;
  options.epochs = 4;
  options.batch_size = 4;  // 10 samples: the third batch of an epoch is short
  options.schedule.peak = 0.1;
  options.schedule.curve = parse_curve("cosine");
  options.seed = 3;
  options.folder = new_folder(folder);
  return options;
}

TEST(Trainer, InterruptedAndResumedEqualsUninterruptedToTheByte) {
  const TrainerOptions whole = options_for("whole");
  const Record expected = train(whole, false);
  EXPECT_EQ(expected.losses.size(), 12u);
  EXPECT_LT(expected.epochs.back().evaluation.at("loss"), expected.epochs.front().evaluation.at("loss"));
  for (int64_t cut : {1, 3, 5, 11}) {
    const TrainerOptions parts = options_for("parts");
    StopReason reason;
    Record first = train(parts, false, cut, &reason);
    EXPECT_EQ(reason, StopReason::kInterrupted);
    const Record second = train(parts, true);
    first.losses.insert(first.losses.end(), second.losses.begin(), second.losses.end());
    EXPECT_EQ(first.losses, expected.losses) << cut;
    for (const char* file : {"/last.onnx", "/best.onnx"}) {
      EXPECT_EQ(read_all(parts.folder + file), read_all(whole.folder + file)) << file << cut;
    }
  }
}

// Two products of 3 x 2 for each sample, and their share of what the machine computes in the time that they take.
TEST(Trainer, AStepSaysWhatItComputes) {
  struct Steps : TrainerEvents {
    std::vector<StepReport> steps;
    void on_step(const StepReport& r) override { steps.push_back(r); }
  } seen;
  TrainerOptions options = options_for("operations");
  options.epochs = 1;
  Session session(make_training_model());
  const Dataset data = make_data(10, session.model());
  const std::atomic<bool> interrupt{false};
  Trainer(&session, &data, &data, options).run(&seen, interrupt);
  ASSERT_EQ(seen.steps.size(), 3u);
  for (const StepReport& r : seen.steps) {
    EXPECT_EQ(r.operations, (std::map<DType, double>{{DType::kFloat, 24.0 * static_cast<double>(r.samples)}}));
    EXPECT_EQ(r.tokens, 0);
  }
  StepReport report = seen.steps[0];
  EXPECT_FALSE(Utilization(session).of(report));
  Utilization utilization(session, std::chrono::seconds(0));
  report.milliseconds = 1;
  const double once = utilization.of(report).value();
  EXPECT_GT(once, 0);
  EXPECT_LT(once, 1);
  report.milliseconds = 0.5;
  EXPECT_DOUBLE_EQ(utilization.of(report).value(), 2 * once);
}

// Batches of a dataset in its order, of which nothing is known before an epoch ends.
class Stream : public BatchSource {
 public:
  Stream(const Dataset* data, const Model& model, int64_t batch_size) : batches_(data, model, batch_size) {}
  void start(int64_t epoch, int64_t skip) override { batches_.start(epoch, skip); }
  int64_t next(TensorMap* batch) override { return batches_.next(batch); }

 private:
  DatasetBatches batches_;
};

Record train_on_stream(TrainerOptions options, bool resume, int64_t interrupt_after = -1) {
  Session session(resume ? load_training_model(options.folder + "/last.onnx") : make_training_model());
  const Dataset data = make_data(10, session.model());
  const auto stream = [&] { return std::make_unique<Stream>(&data, session.model(), options.batch_size); };
  Trainer trainer(&session, stream(), stream(), options);
  if (resume) trainer.resume(*checkpoint_position(session.model()));
  Record record;
  std::atomic<bool> interrupt{false};
  record.interrupt = &interrupt;
  record.interrupt_after = interrupt_after;
  trainer.run(&record, interrupt);
  return record;
}

TEST(Trainer, AStreamOfUnknownLengthMakesTheStepsAndEvaluationsOfTheDataset) {
  TrainerOptions options = options_for("dataset");
  options.shuffle = false;
  options.schedule.curve = parse_curve("constant");
  const Record expected = train(options, false);
  options.folder = new_folder("stream");
  const Record found = train_on_stream(options, false);
  EXPECT_EQ(found.losses, expected.losses);
  ASSERT_EQ(found.epochs.size(), expected.epochs.size());
  for (size_t i = 0; i < found.epochs.size(); ++i) {
    EXPECT_EQ(found.epochs[i].step, expected.epochs[i].step);
    EXPECT_EQ(found.epochs[i].epoch, expected.epochs[i].epoch);
    EXPECT_EQ(found.epochs[i].train_loss, expected.epochs[i].train_loss);
    EXPECT_NEAR(found.epochs[i].evaluation.at("loss"), expected.epochs[i].evaluation.at("loss"), 1e-12);
  }
}

TEST(Trainer, AStreamIsResumedWhereItStopped) {
  TrainerOptions options = options_for("stream_whole");
  options.schedule.curve = parse_curve("constant");
  const std::string whole = options.folder;
  const Record expected = train_on_stream(options, false);
  for (int64_t cut : {1, 3, 5, 11}) {  // 3: the end of an epoch, which the trainer does not know yet
    options.folder = new_folder("stream_parts");
    Record first = train_on_stream(options, false, cut);
    const Record second = train_on_stream(options, true);
    first.losses.insert(first.losses.end(), second.losses.begin(), second.losses.end());
    EXPECT_EQ(first.losses, expected.losses) << cut;
    for (const char* file : {"/last.onnx", "/best.onnx"}) {
      EXPECT_EQ(read_all(options.folder + file), read_all(whole + file)) << file << cut;
    }
  }
}

TEST(Trainer, CheckpointsAreThereFromTheStart) {
  TrainerOptions options = options_for("start");
  options.epochs = 0;
  options.steps = 1;
  options.schedule.curve = parse_curve("constant");
  train(options, false);
  EXPECT_EQ(checkpoint_position(load_training_model(options.folder + "/last.onnx"))->step, 1);
  EXPECT_EQ(checkpoint_position(load_training_model(options.folder + "/best.onnx"))->step, 1);
}

TEST(Trainer, APositionThatCannotBeIsNoResume) {
  TrainerOptions options = options_for("position");
  train(options, false, 2);
  Session session(load_training_model(options.folder + "/last.onnx"));
  const Dataset data = make_data(10, session.model());
  Trainer trainer(&session, &data, &data, options);
  const TrainingPosition good = *checkpoint_position(session.model());
  for (int64_t wrong : {int64_t{-1}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    for (int64_t TrainingPosition::*field :
         {&TrainingPosition::epoch, &TrainingPosition::step, &TrainingPosition::sample, &TrainingPosition::stale}) {
      TrainingPosition position = good;
      position.*field = wrong;
      EXPECT_THROW(trainer.resume(position), Error);
    }
  }
  TrainingPosition endless = good;
  endless.loss.parts = {{std::numeric_limits<double>::infinity(), 1}};
  EXPECT_THROW(trainer.resume(endless), Error);
  EXPECT_NO_THROW(trainer.resume(good));
}

TEST(Trainer, AnotherDataOrderIsNoResume) {
  TrainerOptions options = options_for("order");
  train(options, false, 2);
  options.seed = 4;
  try {
    train(options, true);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("cannot resume: seed was 3 and is 4"));
  }
}

TEST(Trainer, ALossThatIsNotFiniteStops) {
  TrainerOptions options = options_for("diverging");
  options.schedule.peak = 1e20;
  options.schedule.curve = parse_curve("constant");
  options.checkpoint_every = 1;
  EXPECT_THROW(train(options, false), Error);
  const Model last = load_training_model(options.folder + "/last.onnx");  // of a step with a finite loss
  EXPECT_LT(checkpoint_position(last)->step, 12);
}

TEST(Trainer, StopsEarly) {
  TrainerOptions options = options_for("early");
  options.schedule.peak = 0;
  options.schedule.curve = parse_curve("constant");
  options.epochs = 100;
  options.early_stop = 2;
  StopReason reason;
  const Record record = train(options, false, -1, &reason);
  EXPECT_EQ(reason, StopReason::kEarlyStop);
  EXPECT_EQ(record.epochs.size(), 3u);
}

TEST(Trainer, StopsAtTheFirstEvaluationThatReachesItsTarget) {
  TrainerOptions options = options_for("target");
  options.epochs = 100;
  const Record whole = train(options, false);
  const double third = whole.epochs[2].evaluation.at("loss");
  ASSERT_LT(third, whole.epochs[1].evaluation.at("loss"));
  options.folder = new_folder("target");
  options.stop_at = "loss<=" + number_text(third);
  StopReason reason;
  const Record record = train(options, false, -1, &reason);
  EXPECT_EQ(reason, StopReason::kTarget);
  EXPECT_EQ(record.epochs.size(), 3u);
  options.folder = new_folder("target");
  options.stop_at = "accuracy>=0.5";
  const std::string error = error_of([&] { train(options, false); });
  EXPECT_THAT(error, HasSubstr("the evaluation gives no 'accuracy'; it gives loss"));
}

TEST(StopTarget, IsAMetricAComparisonAndANumber) {
  const StopTarget target = parse_stop_target("accuracy >= 0.94");
  EXPECT_EQ(target.metric, "accuracy");
  EXPECT_TRUE(target.reached(0.94) && !target.reached(0.939) && !target.reached(std::nan("")));
  EXPECT_TRUE(parse_stop_target("loss<=1e-2").reached(0.01));
  EXPECT_THAT(error_of([] { parse_stop_target("accuracy>0.94"); }), HasSubstr("expected '='"));
  EXPECT_THAT(error_of([] { parse_stop_target("accuracy=0.94"); }), HasSubstr("expected >= or <="));
  EXPECT_THAT(error_of([] { parse_stop_target("accuracy>=high"); }), HasSubstr("expected a number"));
}

TEST(Trainer, EvaluatesAfterEveryNStepsAndAtTheEnd) {
  TrainerOptions options = options_for("eval_every");
  options.epochs = 0;
  options.steps = 10;
  options.eval_every = 4;
  const Record record = train(options, false);
  ASSERT_EQ(record.epochs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(record.epochs[i].step, i < 2 ? 4 * (static_cast<int64_t>(i) + 1) : 10);
  // Batches of 4, 4 and 2 of 10 samples: the mean is that of the samples since the evaluation before.
  const auto& l = record.losses;
  EXPECT_NEAR(record.epochs[0].train_loss, (4 * l[0] + 4 * l[1] + 2 * l[2] + 4 * l[3]) / 14, 1e-12);
  EXPECT_NEAR(record.epochs[1].train_loss, (4 * l[4] + 2 * l[5] + 4 * l[6] + 4 * l[7]) / 14, 1e-12);
  EXPECT_NEAR(record.epochs[2].train_loss, (2 * l[8] + 4 * l[9]) / 6, 1e-12);
  for (const EvaluationReport& r : record.epochs) EXPECT_TRUE(std::isfinite(r.evaluation.at("loss")));
}

TEST(Trainer, StepsEndWithAnEvaluationAndTheBestIsTheLowestOfAll) {
  TrainerOptions options = options_for("best");
  options.epochs = 0;
  options.steps = 5;                                                            // an epoch has 3
  options.schedule.curve = parse_curve("step(step_every=3, step_factor=100)");  // the loss grows in the second epoch
  const Record record = train(options, false);
  ASSERT_EQ(record.epochs.size(), 2u);
  EXPECT_GT(record.epochs[1].evaluation.at("loss"), record.epochs[0].evaluation.at("loss"));
  EXPECT_TRUE(record.epochs[0].best);
  EXPECT_FALSE(record.epochs[1].best);
  EXPECT_EQ(checkpoint_position(load_training_model(options.folder + "/best.onnx"))->step, 3);
}

TEST(Trainer, AnEvaluationAtTheEndChangesNothingForATrainingThatGoesOn) {
  TrainerOptions whole = options_for("turns_whole"), parts = options_for("turns_parts");
  whole.schedule.curve = parts.schedule.curve = parse_curve("constant");
  const Record expected = train(whole, false);
  parts.steps = 5;
  train(parts, false);
  parts.steps = 0;
  const Record rest = train(parts, true);
  ASSERT_EQ(rest.epochs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rest.epochs[i].train_loss, expected.epochs[i + 1].train_loss);
    EXPECT_EQ(rest.epochs[i].evaluation, expected.epochs[i + 1].evaluation);
  }
  EXPECT_EQ(read_all(parts.folder + "/last.onnx"), read_all(whole.folder + "/last.onnx"));
}

TEST(Trainer, PatienceCountsEvaluations) {
  TrainerOptions options = options_for("patience");
  options.schedule.peak = 0;
  options.schedule.curve = parse_curve("constant");
  options.epochs = 100;
  options.early_stop = 3;
  options.eval_every = 2;
  StopReason reason;
  const Record record = train(options, false, -1, &reason);
  EXPECT_EQ(reason, StopReason::kEarlyStop);
  EXPECT_EQ(record.epochs.size(), 4u);
  EXPECT_EQ(record.losses.size(), 8u);
}

TEST(Trainer, PatienceCountsEvaluationsThatAreLittleBetter) {
  TrainerOptions options = options_for("delta");
  options.epochs = 100;
  const Record whole = train(options, false);
  std::vector<double> losses;
  for (const EvaluationReport& report : whole.epochs) losses.push_back(report.evaluation.at("loss"));
  ASSERT_TRUE(std::is_sorted(losses.rbegin(), losses.rend()));
  // Two epochs together are better by more than that, each of them by less.
  options.min_delta = (losses[3] - losses[5]) * 0.9;
  ASSERT_GT(options.min_delta, losses[3] - losses[4]);
  options.early_stop = 3;
  int64_t marked = 0, stopped = 0;
  for (int64_t i = 0; stopped == 0; ++i) {
    if (losses[size_t(marked)] - losses[size_t(i)] > options.min_delta) marked = i;
    if (i - marked == options.early_stop) stopped = i + 1;
  }
  options.folder = new_folder("delta");
  StopReason reason;
  const Record record = train(options, false, -1, &reason);
  EXPECT_EQ(reason, StopReason::kEarlyStop);
  EXPECT_EQ(record.epochs.size(), size_t(stopped));
  EXPECT_TRUE(record.epochs.back().best) << "best.onnx is the best, by however little";
  const std::string expected = read_all(options.folder + "/last.onnx");
  // It is remembered where the training is interrupted.
  options.folder = new_folder("delta");
  train(options, false, 3 * (stopped - 1));
  EXPECT_EQ(train(options, true, -1, &reason).epochs.size(), 1u);
  EXPECT_EQ(reason, StopReason::kEarlyStop);
  EXPECT_EQ(read_all(options.folder + "/last.onnx"), expected);
}

TEST(Trainer, ResumingNamesWhatHasChangedAndRefusesWhatMustNot) {
  TrainerOptions options = options_for("settings");
  options.model = "a model";
  train(options, false, 2);
  const Model last = load_training_model(options.folder + "/last.onnx");
  const TrainingPosition position = *checkpoint_position(last);
  Session session(clone(last));
  const Dataset data = make_data(10, last), longer = make_data(11, last);
  Tensor x = data.find("x")->rows.stored().clone();
  x.set(7, 99);
  const Dataset other({{"x", x}, {"target", data.find("target")->rows.stored()}}, entry_inputs(last, "step"));
  const auto refusal = [&](const Dataset& training, const Dataset* evaluation, const TrainerOptions& o) {
    try {
      Trainer(&session, &training, evaluation, o).resume(position);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto with = [&](auto&& change) {
    TrainerOptions o = options;
    change(o);
    return o;
  };
  EXPECT_EQ(refusal(data, &data, options), "");
  EXPECT_THAT(refusal(other, &data, options), HasSubstr("data was 10 samples ("));
  EXPECT_THAT(refusal(longer, &data, options), HasSubstr(") and is 11 samples ("));
  EXPECT_THAT(refusal(data, nullptr, options), HasSubstr(") and is none"));
  EXPECT_THAT(refusal(data, &other, options), HasSubstr("eval-data was 10 samples ("));
  EXPECT_THAT(refusal(data, &data, with([](auto& o) { o.model = "b"; })), HasSubstr("model was a model and is b"));
  EXPECT_THAT(refusal(data, &data, with([](auto& o) { o.batch_size = 5; })), HasSubstr("batch-size was 4 and is 5"));
  EXPECT_THAT(refusal(data, &data, with([](auto& o) { o.shuffle = false; })),
              HasSubstr("no-shuffle was false and is true"));
  EXPECT_THAT(refusal(other, nullptr, with([](auto& o) { o.seed = 4; })),
              testing::AllOf(HasSubstr("data was"), HasSubstr("eval-data was"), HasSubstr("seed was 3 and is 4")));
  const TrainerOptions changed = with([](auto& o) {
    o.schedule.peak = 0.05;
    o.schedule.curve = parse_curve("constant");
    o.clip_norm = 1;
    o.early_stop = 2;
    o.min_delta = 0.5;
  });
  EXPECT_THAT(Trainer(&session, &data, &data, changed).resume(position),
              testing::ElementsAre("lr was 0.1 and is 0.05", "schedule was cosine(final_lr=0) and is constant",
                                   "schedule's steps was 12 and is any", "clip was none and is 1",
                                   "early-stop was none and is 2", "min-delta was none and is 0.5"));
}

TEST(Trainer, NumbersThatDoNotFitTheDataAreErrors) {
  const auto message = [](auto&& change) {
    TrainerOptions options = options_for("misfits");
    change(options);
    try {
      train(options, false);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([](auto& o) { o.batch_size = 11; }), "the batch size is 11, but the data has 10 samples");
  EXPECT_EQ(message([](auto& o) { o.schedule.warmup = 13; }), "the warm-up takes 13 steps, but the training has 12");
}

TEST(Trainer, EvaluationWeighsShortBatchesBySamples) {
  Session session(make_training_model());
  const Dataset data = make_data(10, session.model());
  const double whole = evaluate(&session, data, 10).metrics.at("loss");
  const EvaluationResult result = evaluate(&session, data, 4);
  EXPECT_NEAR(result.metrics.at("loss"), whole, 1e-5 * whole);
  EXPECT_THAT(result.notes, testing::ElementsAre(HasSubstr("does not say what its means count")));
}

TEST(Trainer, TheRateOfAModelInFloat64IsTheOneThatWasWritten) {
  for (const Tensor& rate : {Tensor::scalar(0.1f), Tensor::scalar(static_cast<double>(0.1f)), Tensor::scalar(0.1)}) {
    Model model = make_training_model();
    Graph& step = *model.find_entry_point("step")->algorithm;
    Value* const input = step.find("learning_rate");
    input->set_role({roles::kLearningRate, ""});
    step.set_initializer(input, rate);
    EXPECT_EQ(built_rate(model), 0.1);
  }
}

TEST(Checkpoint, DamageIsFound) {
  const std::string folder = new_folder("damage"), path = folder + "/a.onnx";
  TrainingPosition position;
  position.step = 7;
  position.best = 0.1;
  save_checkpoint(Session(make_training_model()), position, path);
  const auto read = checkpoint_position(load_training_model(path));
  EXPECT_EQ(read->step, 7);
  EXPECT_EQ(read->best, 0.1);
  const std::string bytes = read_all(path);
  const float five = 5;
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&five), sizeof five));
  ASSERT_NE(at, std::string::npos);
  std::string damaged = bytes;
  damaged[at] = 1;
  std::ofstream(path, std::ios::binary) << damaged;
  try {
    load_training_model(path);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(path + " is damaged"));
  }
}

}  // namespace
}  // namespace onnx_train::trainer_test
