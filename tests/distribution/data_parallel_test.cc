// Ranks compute, in bits, what one rank computes from the same batches.
#include "onnx_passes/distribution/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/passes.h"
#include "runtime/training/batch_search.h"
#include "runtime/training/run_memory.h"
#include "runtime/training/trainer.h"
#include "tests/support/empty_model.h"
#include "tests/support/error_of.h"
#include "tests/support/golden.h"
#include "tests/support/local_ranks.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::data_parallel_test {
namespace {

using testing::HasSubstr;

// "float[2, 3] name = {..}"
std::string weight(const std::string& type, const std::string& name, int count, double shift = 0) {
  std::string text = concat("float", type, " ", name, " = {");
  for (int i = 0; i < count; ++i) text += concat(i > 0 ? ", " : "", std::sin(1.0 + 0.7 * i) * 0.5 + shift);
  return text + "}";
}

// Convolution, batch normalization with running statistics, dropout, a linear layer.
Model training_model(BuildOptions options, bool drops = true) {
  Model model = from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    network (float[N, 1, 6, 6] x) => (float[N, 3] logits) <)",
                                 weight("[4, 1, 3, 3]", "conv", 36), ", ", weight("[4]", "scale", 4, 1), ", ",
                                 weight("[4]", "bias", 4), ", ", weight("[4]", "mean", 4), ", ",
                                 weight("[4]", "var", 4, 1), ", ", weight("[64, 3]", "fc", 192), R"(> {
      a = Conv (x, conv)
      b = BatchNormalization (a, scale, bias, mean, var)
      c = Relu (b)
      d = )",
                                 drops ? "Dropout" : "Relu", R"( (c)
      e = Flatten (d)
      logits = MatMul (e, fc)
    })"));
  infer_types(model.graph.get());
  options.loss = "cross_entropy";
  options.accumulate = true;
  options.clip_norm = 1;
  build_training_model(&model, options);
  return model;
}

Dataset make_data(int64_t n, const Model& model) {
  Tensor x(DType::kFloat, {n, 1, 6, 6}), labels(DType::kInt64, {n});
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, std::sin(0.37 * static_cast<double>(i)));
  for (int64_t i = 0; i < n; ++i) labels.set(i, static_cast<double>(i % 3));
  return Dataset({{"x", x}, {"labels", labels}}, entry_inputs(model, "accumulate"));
}

struct Record : TrainerEvents {
  std::vector<double> numbers;
  std::atomic<bool>* interrupt = nullptr;
  int64_t interrupt_after = -1;
  void on_step(const StepReport& r) override {
    numbers.insert(numbers.end(), {r.loss, r.grad_norm, static_cast<double>(r.samples), r.accuracy.value_or(-1)});
    if (r.step == interrupt_after) *interrupt = true;
  }
  void on_evaluation(const EvaluationReport& r) override {
    numbers.push_back(r.train_loss);
    for (const auto& [name, value] : r.evaluation) numbers.push_back(value);
  }
};

struct Trained {
  std::map<std::string, Tensor> states;
  std::vector<double> numbers;
  StopReason reason;
  size_t state_bytes;
};

struct Plan {
  BuildOptions build = {};
  int64_t samples = 50, batch = 3, accumulate = 4;
  int64_t interrupt_after = -1;  // by rank 1
  Sharding sharding = Sharding::kNone;
  bool sync_batch_norm = false, drops = true, sums_once = false, sums_in_bf16 = false;
  int stages = 1;
  bool lowers = true;
};

// The states that this rank has; rank 0 has all.
std::map<std::string, Tensor> collected_states(Session* session) {
  std::map<std::string, Tensor> states;
  StateStore& store = session->state();
  for (size_t i = 0; i < store.names().size(); ++i) {
    Tensor value(store.dtype(i), store.shape(i));
    session->collect_state(i, value.data());
    if (session->topology().rank() > 0 && store.keeps(i)) store.read(i, value.data());
    if (session->topology().rank() == 0 || store.keeps(i)) states[store.names()[i]] = value;
  }
  return states;
}

Trained train(const Plan& plan, Collectives* collectives) {
  SessionOptions options;
  options.topology.collectives = collectives;
  options.threads = 1;
  options.topology.sharding = plan.sharding;
  options.topology.sync_batch_norm = plan.sync_batch_norm;
  options.topology.sums_once = plan.sums_once;
  options.topology.sums_in_bf16 = plan.sums_in_bf16;
  options.topology.stages = collectives ? plan.stages : 1;
  options.plan.lowering.on = plan.lowers;
  Session session(training_model(plan.build, plan.drops), options);
  const Dataset data = make_data(plan.samples, session.model()), held_out = make_data(20, session.model());
  TrainerOptions training;
  training.epochs = 2;
  training.batch_size = plan.batch;
  training.accumulate = plan.accumulate;
  Trainer trainer(&session, &data, &held_out, training);
  std::atomic<bool> interrupt = false;
  Record record;
  record.interrupt = &interrupt;
  if (session.topology().rank() == 1) record.interrupt_after = plan.interrupt_after;
  const StopReason reason = trainer.run(&record, interrupt);
  return {collected_states(&session), record.numbers, reason, session.state().bytes()};
}

void expect_same_on_ranks(const Plan& plan, int ranks) {
  SCOPED_TRACE(concat(ranks, " ranks"));
  const Trained expected = train(plan, nullptr);
  std::vector<Trained> trained(static_cast<size_t>(ranks));
  LocalRanks(ranks).run([&](Collectives* c) { trained[static_cast<size_t>(c->rank())] = train(plan, c); });
  for (const Trained& own : trained) {
    expect_equal(own.states, expected.states);
    EXPECT_EQ(own.numbers, expected.numbers);
  }
}

TEST(Topology, EachRankHasAStageAndBatchesOfARound) {
  const Model model = training_model({});
  Rendezvous others;
  for (const int rank : {0, 1, 2, 3}) {
    SimulatedRanks ranks(rank, 4, {}, &others, 4);
    const Topology topology(model, {.collectives = &ranks, .stages = 2});
    EXPECT_EQ(topology.groups(), 2);
    EXPECT_EQ(topology.group(), rank / 2);
    EXPECT_EQ(topology.rounds(5).at_once, 3);
    EXPECT_EQ(topology.batch_of_round(Entry::kAccumulate, 2), 4 + rank / 2);
    EXPECT_EQ(topology.batch_of_round(Entry::kApply, 2), 0);
    TensorMap inputs;
    topology.add_inputs(Entry::kAccumulate, 2, 5, &inputs);
    EXPECT_EQ(inputs.at(micro_batch_input(kRankInput, 2)).at(0), rank / 2);
    EXPECT_EQ(inputs.at(micro_batch_input(kActiveRanksInput, 2)).at(0), 1);  // the second pipeline has no third batch
    for (const char* weight : {"conv", "fc"})
      EXPECT_EQ(topology.has_state(weight), topology.keeper(weight) == rank % 2) << weight;
    EXPECT_NE(topology.keeper("conv"), topology.keeper("fc"));
  }
}

TEST(Topology, OneRankHasAll) {
  const Topology topology(training_model({}), {});
  EXPECT_EQ(topology.ranks(), 1);
  EXPECT_EQ(topology.micro_batches(5), 1);
  EXPECT_FALSE(topology.shares(Entry::kAccumulate));
  EXPECT_TRUE(topology.has_state("conv"));
}

// No call tells the session how many batches its steps have.
TEST(Topology, TheLargestBatchIsThatOfAllMicroBatchesOfAStep) {
  Rendezvous others;
  SimulatedRanks ranks(0, 2, {}, &others, 2);
  SessionOptions options;
  options.topology = {.collectives = &ranks, .stages = 2};
  options.plans_only = true;
  Session session(training_model({}), options);
  const Dataset data = make_data(4000, session.model());
  const auto planned = [&](int64_t per_step) {
    return find_largest_batch(&session, {data, nullptr, size_t{1} << 40, false, 1, per_step}).planned;
  };
  EXPECT_GT(planned(9), planned(1) + 4 * bytes_of_batches(data, 4000));
}

// 50 samples in batches of 3, 4 in a step: the last step of an epoch has one batch, of 2 samples.
TEST(DataParallel, RanksChangeNoBit) {
  for (const int ranks : {2, 3, 4, 5}) expect_same_on_ranks({}, ranks);
}

TEST(DataParallel, OptimizersAndAveragesChangeNoBit) {
  for (const char* optimizer : {"sgd(lr=0.1, momentum=0.9)", "muon(lr=0.01)"}) {
    SCOPED_TRACE(optimizer);
    BuildOptions build;
    build.optimizer = optimizer;
    build.ema = 0.9;
    expect_same_on_ranks({.build = build}, 2);
  }
}

TEST(DataParallel, MixedPrecisionWithLossScalingChangesNoBit) {
  BuildOptions build;
  build.precision = Precision::kFloat16;
  expect_same_on_ranks({.build = build}, 2);
}

void expect_near(const Trained& a, const Trained& b) {
  for (const auto& [name, x] : a.states) {
    const Tensor& y = b.states.at(name);
    for (int64_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x.at(i), y.at(i), 2e-6 * (1 + std::abs(y.at(i)))) << name;
  }
  for (size_t i = 0; i < a.numbers.size(); ++i) EXPECT_NEAR(a.numbers[i], b.numbers[i], 2e-6 * (1 + b.numbers[i]));
}

// Of what only the update reads, each rank has the states of its own weights. What the ranks have together is what one
// has: in bits in stage 1; in stage 2 the norm of all gradients is that of the weights' norms.
TEST(DataParallel, SharedOutStatesAreThoseOfOneRank) {
  for (const Sharding sharding : {Sharding::kOptimizer, Sharding::kGradients, Sharding::kWeights}) {
    for (const char* optimizer : {"adamw(lr=0.01)", "sgd(lr=0.1, momentum=0.9)", "muon(lr=0.01)", "lamb(lr=0.01)"}) {
      for (const int ranks : {2, 3, 4}) {
        SCOPED_TRACE(concat(optimizer, ", ", ranks, " ranks, stage ", static_cast<int>(sharding)));
        BuildOptions build;
        build.optimizer = optimizer;
        build.ema = 0.9;
        const Trained expected = train({.build = build}, nullptr);
        std::vector<Trained> trained(static_cast<size_t>(ranks));
        LocalRanks(ranks).run([&](Collectives* c) {
          trained[static_cast<size_t>(c->rank())] = train({.build = build, .sharding = sharding}, c);
        });
        expect_near(trained[0], expected);
        if (sharding == Sharding::kOptimizer) expect_equal(trained[0].states, expected.states);
        for (const Trained& own : trained) {
          EXPECT_EQ(own.numbers, trained[0].numbers);
          EXPECT_LT(own.state_bytes, expected.state_bytes);
        }
      }
    }
  }
}

// Gradients of a step travel once, after its last round, which may have fewer batches than ranks. The sums are those of
// other brackets.
TEST(DataParallel, GradientsThatTravelOnceAStepTrainTheSame) {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer}) {
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(concat(ranks, " ranks, stage ", static_cast<int>(sharding)));
      const Trained expected = train({}, nullptr);
      std::vector<Trained> trained(static_cast<size_t>(ranks));
      LocalRanks(ranks).run([&](Collectives* c) {
        trained[static_cast<size_t>(c->rank())] = train({.sharding = sharding, .sums_once = true}, c);
      });
      expect_near(trained[0], expected);
      for (const Trained& own : trained) EXPECT_EQ(own.numbers, trained[0].numbers);
    }
  }
}

TEST(DataParallel, GradientsThatTravelIn16BitsAreRounded) {
  const Trained expected = train({}, nullptr);
  std::vector<Trained> trained(3);
  LocalRanks(3).run([&](Collectives* c) {
    trained[static_cast<size_t>(c->rank())] = train({.sums_once = true, .sums_in_bf16 = true}, c);
  });
  for (const Trained& own : trained) EXPECT_EQ(own.numbers, trained[0].numbers);
  const double error = relative_error(trained[0].states.at("fc"), expected.states.at("fc"));
  EXPECT_GT(error, 1e-6);
  EXPECT_LT(error, 2e-2);
}

// 256 and 1 would be 256 in bfloat16, and so on.
TEST(DataParallel, TermsOf16BitsAreAddedInFloat) {
  const auto sum = [](Collectives* c) {
    Model model = empty_model();
    Builder b(model.graph.get());
    const Var z = cast(b.var(model.graph->add_input("z", {DType::kFloat, Dims{5}})), DType::kBFloat16);
    const Var y = call(b, "AllReduce", {b.scalar(DType::kBFloat16, 0), z, b.scalar(DType::kInt64, 3)});
    b.set_name("y");
    model.graph->add_output(cast(y, DType::kFloat).value());
    SessionOptions options;
    options.topology.collectives = c;
    Session session(std::move(model), options);
    return session.run("predict", {{"z", Tensor::full(DType::kFloat, {5}, c->rank() == 0 ? 256 : 1)}}).at("y").at(4);
  };
  LocalRanks(3).run([&](Collectives* c) { EXPECT_EQ(sum(c), 258); });
}

// Programs that run entry points themselves need not say which round is the last one of its step.
TEST(DataParallel, AnUpdateAddsUpWhatNoRoundHasAddedUp) {
  const auto weights_after = [](Collectives* c, bool says) {
    SessionOptions options;
    options.topology.collectives = c;
    options.topology.sums_once = true;
    Session session(training_model({}, /*drops=*/false), options);
    Tensor x(DType::kFloat, {3, 1, 6, 6}), labels(DType::kInt64, {3});
    for (int step = 0; step < 2; ++step) {
      for (int round = 0; round < 2; ++round) {
        for (int64_t i = 0; i < x.size(); ++i) x.set(i, std::sin(0.3 * static_cast<double>(i) + c->rank() + 2 * round));
        session.run(Entry::kAccumulate, {{"x", x}, {"labels", labels}}, 0, says && round == 1);
      }
      session.run(Entry::kApply, {});
    }
    return collected_states(&session);
  };
  std::vector<std::map<std::string, Tensor>> said(2), unsaid(2);
  LocalRanks(2).run([&](Collectives* c) {
    said[static_cast<size_t>(c->rank())] = weights_after(c, true);
    unsaid[static_cast<size_t>(c->rank())] = weights_after(c, false);
  });
  for (auto* const states : {&said[0], &unsaid[0], &unsaid[1]})  // sums are each rank's own, where no round adds up
    std::erase_if(*states,
                  [](const auto& s) { return s.first.ends_with("/grad") || s.first.ends_with("/accumulated"); });
  expect_equal(unsaid[0], said[0]);
  expect_equal(unsaid[1], said[0]);
}

TEST(DataParallel, WhatSumsOfAStepDoNotGoWith) {
  EXPECT_THAT(error_of([] { check_ranks(2, {.sharding = Sharding::kGradients, .sums_once = true}); }),
              HasSubstr("--reduction fast: each process adds up gradients of all weights; leave out --zero, or take"));
  EXPECT_THAT(error_of([] { check_ranks(2, {.sums_in_bf16 = true}); }), HasSubstr("take --reduction fast"));
}

// 48 samples: four batches of 3 in a step are one of 12. Without dropout, which draws for each batch.
TEST(DataParallel, SynchronizedBatchNormSeesOneBatch) {
  const Trained expected = train({.samples = 48, .batch = 12, .accumulate = 1, .drops = false}, nullptr);
  std::vector<Trained> trained(4);
  LocalRanks(4).run([&](Collectives* c) {
    trained[static_cast<size_t>(c->rank())] = train({.samples = 48, .sync_batch_norm = true, .drops = false}, c);
  });
  for (const Trained& own : trained) {
    expect_equal(own.states, trained[0].states);
    expect_near(own, expected);
  }
}

// One rank's user stops all of them after the same step.
TEST(DataParallel, RanksStopTogether) {
  const Plan plan{.interrupt_after = 2};
  std::vector<Trained> trained(3);
  LocalRanks(3).run([&](Collectives* c) { trained[static_cast<size_t>(c->rank())] = train(plan, c); });
  for (const Trained& own : trained) {
    EXPECT_EQ(own.reason, StopReason::kInterrupted);
    expect_equal(own.states, trained[0].states);
    EXPECT_EQ(own.numbers, trained[0].numbers);
  }
}

TEST(DataParallel, ARankThatFailsEndsAll) {
  const std::string error = error_of([] {
    LocalRanks(2).run([](Collectives* c) {
      SessionOptions options;
      options.topology.collectives = c;
      Session session(training_model({}), options);
      TensorMap batch = {{"x", Tensor(DType::kFloat, {2, 1, 6, 6})}, {"labels", Tensor(DType::kInt64, {2})}};
      if (c->rank() == 1) batch["labels"].set(0, 7);
      session.run("accumulate", batch);
    });
  });
  EXPECT_THAT(error, HasSubstr("7"));
}

TEST(DataParallel, WholeStepsAreRefused) {
  LocalRanks(2).run([](Collectives* c) {
    SessionOptions options;
    options.topology.collectives = c;
    Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[N, 2] x) => (float[N, 2] y) <" +
                            weight("[2, 2]", "w", 4) + "> { y = MatMul (x, w) }");
    infer_types(model.graph.get());
    BuildOptions build;
    build.loss = "mse";
    build_training_model(&model, build);
    Session session(std::move(model), options);
    const Dataset data({{"x", Tensor(DType::kFloat, {4, 2})}, {"labels", Tensor(DType::kFloat, {4, 2})}},
                       entry_inputs(session.model(), "step"));
    TrainerOptions training;
    training.epochs = 1;
    training.batch_size = 2;
    EXPECT_THAT(error_of([&] { Trainer(&session, &data, nullptr, training); }), HasSubstr("--accumulate"));
  });
}

// Without lowering, which fuses what one rank computes and two do not.
TEST(Pipeline, StagesChangeNoBitOfWhatTheyCompute) {
  for (const int64_t accumulate : {1, 2, 5}) {
    SCOPED_TRACE(accumulate);
    Plan plan{.accumulate = accumulate, .stages = 2, .lowers = false};
    plan.build.optimizer = "sgd(lr=0.1, momentum=0.9)";
    const Trained expected = train(plan, nullptr);
    std::vector<Trained> trained(2);
    LocalRanks(2).run([&](Collectives* c) { trained[static_cast<size_t>(c->rank())] = train(plan, c); });
    // The norm of all gradients is that of the stages' norms, and clipped gradients follow from it.
    expect_near(trained[0], expected);
    EXPECT_EQ(trained[0].numbers, trained[1].numbers);
    EXPECT_EQ(trained[0].numbers[0], expected.numbers[0]);
    constexpr size_t kBoth = 512;  // random keys and counts, which both stages have
    EXPECT_LE(trained[0].state_bytes + trained[1].state_bytes, expected.state_bytes + kBoth);
  }
}

// Two pipelines, the second of which has fewer micro-batches in some steps.
TEST(Pipeline, SumsOfPipelinesTravelOnceAStep) {
  for (const int64_t accumulate : {4, 3}) {
    for (const bool in_bf16 : {false, true}) {
      SCOPED_TRACE(concat(accumulate, in_bf16 ? " bf16" : ""));
      Plan plan{.accumulate = accumulate, .sums_once = true, .sums_in_bf16 = in_bf16, .stages = 2};
      plan.build.optimizer = "sgd(lr=0.1, momentum=0.9)";
      const Trained expected = train(plan, nullptr);
      std::vector<Trained> trained(4);
      LocalRanks(4).run([&](Collectives* c) { trained[static_cast<size_t>(c->rank())] = train(plan, c); });
      if (!in_bf16) expect_near(trained[0], expected);
      EXPECT_LT(relative_error(trained[0].states.at("fc"), expected.states.at("fc")), 2e-2);
      for (const Trained& own : trained) EXPECT_EQ(own.numbers, trained[0].numbers);
    }
  }
}

}  // namespace
}  // namespace onnx_train::data_parallel_test
