#include "onnx_passes/precision/loss_scaling.h"
#include "onnx_passes/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "runtime/training/trainer.h"
#include "tests/support/run_node.h"

namespace onnx_train::loss_scaling_test {
namespace {

BuildOptions options(const std::string& scale, const std::string& optimizer = "adamw") {
  BuildOptions options;
  options.loss = "mse(y, target)";
  options.optimizer = optimizer;
  options.loss_scale = scale;
  return options;
}

Session session(const BuildOptions& options) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[4,3] x) => (float[4,2] y) <float[3,2] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6}> { y = MatMul (x, w) })");
  infer_types(model.graph.get());
  build_training_model(&model, options);
  return Session(std::move(model));
}

Tensor samples(int64_t n, double factor) {
  Tensor x = random_tensor(DType::kFloat, {n, 3}, 1);
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, factor * x.at(i));
  return x;
}

TensorMap batch(double factor = 1) {
  return {{"x", samples(4, factor)}, {"target", random_tensor(DType::kFloat, {4, 2}, 2)}};
}

TensorMap state(Session& session) {
  TensorMap all;
  for (const std::string& name : session.state().names()) all[name] = session.state().get(name);
  return all;
}

double scalar(Session& session, const std::string& name) { return session.state().get(name).at(0); }

void expect_equal(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape());
  for (int64_t i = 0; i < a.size(); ++i) EXPECT_EQ(a.at(i), b.at(i)) << what;
}

// Powers of two change no digit.
TEST(LossScaling, TrainsAsWithout) {
  Session plain = session(options("")), fixed = session(options("1024")), dynamic = session(options("dynamic"));
  for (int step = 0; step < 5; ++step) {
    const Tensor loss = plain.run("step", batch()).at("loss").clone();
    EXPECT_EQ(fixed.run("step", batch()).at("loss").at(0), loss.at(0));
    EXPECT_EQ(dynamic.run("step", batch()).at("loss").at(0), loss.at(0));
  }
  for (const auto& [name, tensor] : state(plain)) {
    expect_equal(fixed.state().get(name), tensor, name);
    expect_equal(dynamic.state().get(name), tensor, name);
  }
  EXPECT_EQ(scalar(dynamic, "state/loss_scale"), 65536);
  EXPECT_EQ(scalar(dynamic, "state/loss_scale/good"), 5);
}

TEST(LossScaling, SkipsWhatOverflows) {
  Session trained = session(options("dynamic"));
  trained.run("step", batch());
  const TensorMap before = state(trained);
  EXPECT_FALSE(std::isfinite(trained.run("step", batch(1e18)).at("grad_norm").at(0)));
  for (const auto& [name, tensor] : before) {
    if (name.find("loss_scale") == std::string::npos) expect_equal(trained.state().get(name), tensor, name);
  }
  EXPECT_EQ(scalar(trained, "state/loss_scale"), 32768);
  EXPECT_EQ(scalar(trained, "state/loss_scale/good"), 0);
  trained.run("step", batch());
  EXPECT_EQ(scalar(trained, "state/step"), 2);
  EXPECT_EQ(scalar(trained, "state/loss_scale"), 32768);
  EXPECT_EQ(scalar(trained, "state/loss_scale/good"), 1);

  Session fixed = session(options("65536", "sgd"));
  const Tensor weight = fixed.state().get("w");
  fixed.run("step", batch(1e18));
  expect_equal(fixed.state().get("w"), weight, "w");
}

TEST(LossScaling, GrowsAfterManyGoodUpdatesAndNeverBeyondFloat32) {
  Session trained = session(options("dynamic", "sgd"));
  for (int step = 0; step < 1999; ++step) trained.run("step", batch());
  EXPECT_EQ(scalar(trained, "state/loss_scale"), 65536);
  trained.run("step", batch());
  EXPECT_EQ(scalar(trained, "state/loss_scale"), 131072);
  EXPECT_EQ(scalar(trained, "state/loss_scale/good"), 0);
  for (int step = 0; step < 200; ++step) trained.run("step", batch(1e30));
  EXPECT_EQ(scalar(trained, "state/loss_scale"), 0x1p-126);
}

TEST(LossScaling, OptionsSayFirstScaleAndInterval) {
  Session trained = session(options("dynamic(init_scale=512, growth_interval=3)", "sgd"));
  std::vector<double> scales;
  for (int step = 0; step < 8; ++step) {
    scales.push_back(trained.run("step", batch(step == 4 ? 1e18 : 1)).at("loss_scale").at(0));
  }
  EXPECT_EQ(scales, (std::vector<double>{512, 512, 512, 1024, 1024, 512, 512, 512}));
  EXPECT_EQ(scalar(trained, "state/loss_scale"), 1024);
}

// The updates are those of a training that never saw what is skipped.
TEST(LossScaling, ManyOverflowsLeaveNoTrace) {
  Session trained = session(options("dynamic(growth_interval=7)")), plain = session(options(""));
  int64_t skipped = 0, grown = 0;
  double scale = 65536;
  for (int step = 0; step < 3000; ++step) {
    const bool overflows = step % 11 == 10;
    const TensorMap& out = trained.run("step", batch(overflows ? 1e18 : 1));
    EXPECT_NE(std::isfinite(out.at("grad_norm").at(0)), overflows);
    grown += out.at("loss_scale").at(0) > scale ? 1 : 0;
    scale = out.at("loss_scale").at(0);
    skipped += overflows ? 1 : 0;
    if (!overflows) plain.run("step", batch());
  }
  EXPECT_GT(grown, 200);
  EXPECT_EQ(skipped, 272);
  for (const auto& [name, tensor] : state(plain)) expect_equal(trained.state().get(name), tensor, name);
}

class Steps : public TrainerEvents {
 public:
  void on_step(const StepReport& step) override { reports.push_back(step); }
  std::vector<StepReport> reports;
};

std::string error_of_training(Session* session, double factor, double target, int64_t steps, Steps* events,
                              int64_t accumulate = 1) {
  const TensorMap arrays = {{"x", samples(4 * accumulate, factor)},
                            {"target", Tensor::full(DType::kFloat, {4 * accumulate, 2}, target)}};
  const Dataset data(arrays, entry_inputs(session->model(), accumulate == 1 ? "step" : "accumulate"));
  TrainerOptions options;
  options.steps = steps;
  options.batch_size = 4;
  options.accumulate = accumulate;
  options.schedule.peak = 0.01;
  Trainer trainer(session, &data, nullptr, options);
  try {
    trainer.run(events, std::atomic<bool>(false));
  } catch (const Error& error) {
    return error.what();
  }
  EXPECT_EQ(trainer.skipped_steps(),
            std::count_if(events->reports.begin(), events->reports.end(), [](const auto& r) { return r.skipped; }));
  return "";
}

TEST(LossScaling, TheTrainerGoesOnAfterAnOverflowAndEndsIfThereIsNoEnd) {
  Steps steps;
  // Gradients overflow, not only their squares, which the norms of some devices scale.
  Session trained = session(options("dynamic(init_scale=1e38)", "sgd"));
  EXPECT_EQ(error_of_training(&trained, 1, 100, 100, &steps), "");
  ASSERT_EQ(steps.reports.size(), 100u);
  EXPECT_TRUE(steps.reports[0].skipped && !std::isfinite(steps.reports[0].grad_norm));
  EXPECT_EQ(*steps.reports[1].loss_scale, *steps.reports[0].loss_scale / 2);
  EXPECT_FALSE(steps.reports[99].skipped);
  EXPECT_LT(steps.reports[99].loss, steps.reports[0].loss);

  for (const char* scale : {"dynamic", "1e30"}) {
    Steps endless;
    Session stuck = session(options(scale, "sgd"));
    const Tensor weight = stuck.state().get("w");
    const std::string error = error_of_training(&stuck, 1e30, 1e30, 1000, &endless);  // the loss overflows, too
    EXPECT_THAT(error, testing::HasSubstr("the gradients overflow whatever the loss scale: ")) << scale;
    EXPECT_LT(endless.reports.size(), 60u);
    expect_equal(stuck.state().get("w"), weight, "w");
  }
}

TEST(LossScaling, MistakesAreRefused) {
  for (const char* text : {"0", "-1", "inf", "nan", "much", "1e99", "dynamic(3)", "dynamic(growth_interval=0)",
                           "dynamic(init_scale=0)", "dynamic(scale=2)", "dynamic 2", "2 3"})
    EXPECT_THROW(session(options(text)), Error) << text;
}

// Accumulators of scaled gradients: powers of two change no digit, and a batch that overflows discards the sums.
TEST(LossScaling, AccumulatesAsWithout) {
  for (const char* loss : {"mse(y, target)", "mse(y, target) + mse(y, target, reduction=sum)"}) {
    const auto accumulating = [&](const char* scale) {
      BuildOptions o = options(scale);
      o.loss = loss;
      o.accumulate = true;
      return session(o);
    };
    Session plain = accumulating(""), fixed = accumulating("1024"), dynamic = accumulating("dynamic");
    for (const double last : {1, 2, 3}) {
      for (Session* each : {&plain, &fixed, &dynamic}) {
        for (const double factor : {1.0, last}) each->run("accumulate", batch(factor));
        each->run("apply", {});
      }
    }
    expect_equal(fixed.state().get("w"), plain.state().get("w"), loss);
    expect_equal(dynamic.state().get("w"), plain.state().get("w"), loss);

    const Tensor weight = dynamic.state().get("w");
    dynamic.run("accumulate", batch(1e18));
    EXPECT_EQ(dynamic.run("accumulate", batch()).at("loss_scale").at(0), 65536);
    EXPECT_FALSE(std::isfinite(dynamic.run("apply", {}).at("grad_norm").at(0)));
    expect_equal(dynamic.state().get("w"), weight, loss);
    EXPECT_EQ(scalar(dynamic, "state/step"), 3);
    EXPECT_EQ(scalar(dynamic, "state/loss_scale"), 32768);
    for (Session* each : {&plain, &dynamic}) {
      each->run("accumulate", batch());
      each->run("apply", {});
    }
    expect_equal(dynamic.state().get("w"), plain.state().get("w"), loss);
  }
}

TEST(LossScaling, FitsWithAccumulationThroughOverflows) {
  BuildOptions accumulating = options("dynamic(init_scale=1e38)");
  accumulating.accumulate = true;
  Session trained = session(accumulating);
  Steps steps;
  EXPECT_EQ(error_of_training(&trained, 1, 100, 200, &steps, 2), "");
  EXPECT_TRUE(steps.reports.front().skipped);
  EXPECT_FALSE(steps.reports.back().skipped);
  EXPECT_LT(steps.reports.back().loss, steps.reports.front().loss);
}

}  // namespace
}  // namespace onnx_train::loss_scaling_test
