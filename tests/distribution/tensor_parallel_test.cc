// Ranks that have parts of weights compute, within rounding, what one rank computes.
#include "onnx_passes/distribution/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "onnx_passes/distribution/layout_rules.h"
#include "onnx_passes/distribution/part_nodes.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes.h"
#include "runtime/training/trainer.h"
#include "tests/support/error_of.h"
#include "tests/support/golden.h"
#include "tests/support/local_ranks.h"
#include "tests/support/sessions.h"
#include "tests/support/transformer.h"

namespace onnx_train::tensor_parallel_test {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST(TensorLayout, PartsOfATensorAreAllOfIt) {
  Tensor whole(DType::kFloat, {2, 12, 3});
  for (int64_t i = 0; i < whole.size(); ++i) whole.set(i, static_cast<double>(i));
  for (const Cut& cut : {Cut{0, 2}, Cut{1, 12}, Cut{1, 4}, Cut{1, 6}}) {
    Tensor joined(DType::kFloat, whole.shape());
    for (int part = 0; part < 2; ++part) {
      const Tensor own = take_part(whole, cut, 2, part);
      EXPECT_EQ(own.shape(), shape_of_part(whole.shape(), cut, 2));
      put_part(own, whole.shape(), cut, 2, part, joined.data());
    }
    expect_equal({{"x", joined}}, {{"x", whole}});
  }
  EXPECT_EQ(take_part(whole, {1, 4}, 2, 1).at(0), 6);   // row 2 of 12
  EXPECT_EQ(take_part(whole, {1, 4}, 2, 1).at(6), 18);  // row 6
}

TEST(TensorLayout, AViewHasRunsOfItsOwn) {
  const auto view = [](const Dims& from, const Cut& cut, const Dims& to) { return cut_of_view(from, cut, to, 2); };
  EXPECT_EQ(view({"N", "S", 32}, {2, 32}, {"N", "S", 4, 8}), (Cut{2, 4}));
  EXPECT_EQ(view({"N", "S", 4, 8}, {2, 4}, {"N", "S", 32}), (Cut{2, 32}));
  EXPECT_EQ(view({"N", "S", 96}, {2, 96}, {"N", "S", 3, 4, 8}), std::nullopt);  // of queries, keys and values
  EXPECT_EQ(view({"N", "S", 96}, {2, 32}, {"N", "S", 3, 4, 8}), (Cut{3, 4}));
  EXPECT_EQ(view({"N", 4, "S", 8}, {1, 4}, {Dim(), "S", 8}), (Cut{0, 4}));  // texts and heads are one axis
  EXPECT_EQ(view({Dim(), "S", 8}, {0, 4}, {"N", 4, "S", 8}), (Cut{1, 4}));
  EXPECT_EQ(view({"N", 4, "S", 8}, {1, 4}, {"N", Dim(), 8}), std::nullopt);
  EXPECT_EQ(view({"N", 6, 8}, {1, 6}, {"N", 3, 16}), std::nullopt);  // three pairs are no two parts
  EXPECT_EQ(view({"N", 4}, {1, 4}, {"N", 1, 4}), (Cut{2, 4}));
}

TEST(TensorParallel, GoldenAttention) {
  const StateCuts cuts = {{"qkv", {0, 4}}, {"qkv_bias", {0, 4}}, {"out", {0, 4}}};
  expect_golden("tensor_parallel_attention",
                {{"split_tensors", [&](Model& m) { return split_tensors(&m, cuts, 2, 0), true; }}});
}

// "float[2, 3] name = {..}"
std::string matrix(const std::string& name, int rows, int columns) {
  const std::string shape = rows > 0 ? concat(rows, ", ", columns) : concat(columns);
  std::string text = concat("float[", shape, "] ", name, " = {");
  for (int i = 0; i < std::max(rows, 1) * columns; ++i)
    text += concat(i > 0 ? ", " : "", std::sin(1.0 + 0.7 * i + columns) * 0.5);
  return text + "}";
}

Model built(Model model, BuildOptions options) {
  infer_types(model.graph.get());
  options.loss = options.loss.empty() ? "cross_entropy" : options.loss;
  options.accumulate = true;
  if (!options.clip_norm) options.clip_norm = 1;
  build_training_model(&model, options);
  return model;
}

// Two layers, gates, a norm of what the gates give, dropout where ranks have parts, and a layer of classes.
Model mlp(const BuildOptions& options) {
  return built(from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    network (float[N, 6] x) => (float[N, 3] logits) <)",
                                matrix("gate", 6, 8), ", ", matrix("up", 6, 8), ", ", matrix("up_bias", 0, 8), ", ",
                                matrix("down", 8, 6), ", ", matrix("down_bias", 0, 6), ", ", matrix("scale", 0, 6),
                                ", ", matrix("classes", 6, 3), R"(, float ratio = {0.25}> {
      g = MatMul (x, gate)
      s = Sigmoid (g)
      u = Gemm (x, up, up_bias)
      h = Mul (s, u)
      d = Dropout (h, ratio)
      y = Gemm (d, down, down_bias)
      z = Add (y, x)
      n = LayerNormalization (z, scale)
      logits = MatMul (n, classes)
    })")),
               options);
}

// "float[8, 3, 3, 3] name = {..}"
std::string kernel(const std::string& name, const Shape& shape) {
  std::string sizes, elements;
  for (const int64_t size : shape) sizes += concat(sizes.empty() ? "" : ", ", size);
  for (int64_t i = 0; i < num_elements(shape); ++i)
    elements += concat(i > 0 ? ", " : "", std::sin(1.0 + 0.7 * static_cast<double>(i)) * 0.4);
  return concat("float[", sizes, "] ", name, " = {", elements, "}");
}

// Convolutions by channels out and in, one between for each channel, normalization of batches, pools.
Model convolutions(const BuildOptions& options) {
  return built(from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    network (float[N, 3, 8, 8] x) => (float[N, 3] logits) <)",
                                kernel("in", {8, 3, 3, 3}), ", ", kernel("in_bias", {8}), ", ", kernel("scale", {8}),
                                ", ", kernel("bias", {8}), ", float[8] mean = {0,0,0,0,0,0,0,0}",
                                ", float[8] var = {1,1,1,1,1,1,1,1}, ", kernel("each", {8, 1, 3, 3}), ", ",
                                kernel("out", {3, 8, 1, 1}), ", ", kernel("out_bias", {3}), ", ",
                                kernel("classes", {12, 3}), R"(> {
      a = Conv <pads = [1, 1, 1, 1]> (x, in, in_bias)
      b = BatchNormalization (a, scale, bias, mean, var)
      c = Relu (b)
      d = Conv <pads = [1, 1, 1, 1], group = 8> (c, each)
      e = Conv (d, out, out_bias)
      f = Add (e, x)
      g = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (f)
      h = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (g)
      i = Flatten (h)
      logits = MatMul (i, classes)
    })")),
               options);
}

// A table that is the first and the last weight: rows by their numbers, and a product with all of them.
Model tied(const BuildOptions& options) {
  return built(from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    network (int64[N, 4] tokens) => (float[N, 4, 10] logits) <)",
                                matrix("table", 10, 6), ", ", matrix("scale", 0, 6), R"(> {
      h = Gather (table, tokens)
      n = LayerNormalization (h, scale)
      columns = Transpose <perm = [1, 0]> (table)
      logits = MatMul (n, columns)
    })")),
               options);
}

Model transformer(BuildOptions options, float dropout = 0) {
  return built(make_transformer({.blocks = 2, .width = 8, .heads = 2, .dropout = dropout}), std::move(options));
}

struct Case {
  Model (*make)(const BuildOptions&);
  BuildOptions build = {};
  int64_t accumulate = 2;
  Sharding sharding = Sharding::kNone;
  bool sums_once = false;
};

TensorMap samples_of(const Model& model, int64_t count) {
  TensorMap data;
  for (const InputSpec& spec : entry_inputs(model, Entry::kAccumulate)) {
    if (spec.has_default) continue;
    Shape shape;
    for (const Dim& dim : *spec.type.dims) shape.push_back(dim.known() ? dim.value() : count);
    shape[0] = count;
    Tensor x(spec.type.dtype, shape);
    for (int64_t i = 0; i < x.size(); ++i) {
      const auto at = static_cast<double>(i);
      x.set(i, is_float(x.dtype()) ? std::sin(0.37 * at) : static_cast<double>(i * i % 3));
    }
    data[spec.name] = x;
  }
  return data;
}

struct Trained {
  std::map<std::string, Tensor> states;  // on rank 0
  std::vector<double> losses;
  size_t state_bytes = 0;
  int cut = 0, matrices = 0;
};

struct LossRecord : TrainerEvents {
  std::vector<double> losses;
  void on_step(const StepReport& r) override { losses.insert(losses.end(), {r.loss, r.grad_norm}); }
  void on_evaluation(const EvaluationReport& r) override {
    for (const auto& [name, value] : r.evaluation) losses.push_back(value);
  }
};

Trained train(const Case& c, Collectives* ranks, int tensor) {
  SessionOptions options;
  options.threads = 1;
  options.topology = {.collectives = ranks, .sharding = c.sharding, .sums_once = c.sums_once, .tensor = tensor};
  Session session(c.make(c.build), options);
  const auto specs = entry_inputs(session.model(), Entry::kAccumulate);
  const Dataset data(samples_of(session.model(), 26), specs), held_out(samples_of(session.model(), 9), specs);
  TrainerOptions training;
  training.epochs = 2;
  training.batch_size = 3;
  training.accumulate = c.accumulate;
  Trainer trainer(&session, &data, &held_out, training);
  const std::atomic<bool> interrupt = false;
  LossRecord record;
  trainer.run(&record, interrupt);
  Trained trained;
  trained.losses = record.losses;
  trained.state_bytes = session.state_bytes();
  trained.cut = session.topology().tensor_shares().cut_matrices;
  trained.matrices = session.topology().tensor_shares().matrices;
  StateStore& store = session.state();
  for (size_t i = 0; i < store.names().size(); ++i) {
    Tensor value(store.dtype(i), store.shape(i));
    session.collect_state(i, value.data());
    if (session.topology().rank() == 0) trained.states[store.names()[i]] = value;
  }
  return trained;
}

Trained expect_same_on_ranks(const Case& c, int ranks, int tensor, double tolerance = 1e-5) {
  SCOPED_TRACE(concat(ranks, " ranks, ", tensor, " a group"));
  const Trained expected = train(c, nullptr, 1);
  std::vector<Trained> trained(static_cast<size_t>(ranks));
  LocalRanks(ranks).run([&](Collectives* own) { trained[static_cast<size_t>(own->rank())] = train(c, own, tensor); });
  for (const auto& [name, x] : trained[0].states) {
    const Tensor& y = expected.states.at(name);
    EXPECT_EQ(x.shape(), y.shape());
    for (int64_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(x.at(i), y.at(i), tolerance * (1 + std::abs(y.at(i)))) << name << " " << i;
      if (testing::Test::HasFailure()) return trained[0];
    }
  }
  for (const Trained& own : trained) {
    EXPECT_EQ(own.losses, trained[0].losses);
    EXPECT_EQ(own.losses.size(), expected.losses.size());
    for (size_t i = 0; i < own.losses.size(); ++i) EXPECT_NEAR(own.losses[i], expected.losses[i], 1e-5);
    EXPECT_LT(own.state_bytes, expected.state_bytes);
  }
  return trained[0];
}

BuildOptions with_sgd() {
  BuildOptions build;
  build.optimizer = "sgd(lr=0.1, momentum=0.9)";
  return build;
}

TEST(TensorParallel, TrainsAnMlpAsOneRank) {
  const Case c{.make = mlp, .build = with_sgd()};
  const Trained own = expect_same_on_ranks(c, 2, 2);
  EXPECT_EQ(own.cut, 3);  // the classes' product reads what is normalized
  EXPECT_EQ(own.matrices, 4);
}

TEST(TensorParallel, TrainsATransformerAsOneRank) {
  const Case c{.make = [](const BuildOptions& o) { return transformer(o); }, .build = with_sgd()};
  const Trained own = expect_same_on_ranks(c, 2, 2);
  EXPECT_EQ(own.cut, 14);
  EXPECT_EQ(own.matrices, 14);
}

TEST(TensorParallel, TrainsConvolutionsByChannels) {
  const Trained own = expect_same_on_ranks({.make = convolutions, .build = with_sgd()}, 2, 2);
  EXPECT_EQ(own.cut, 3);  // three classes have no halves
  EXPECT_EQ(own.matrices, 4);
}

// The loss, the accuracy and the rows of the table are of an axis that no rank has whole.
TEST(TensorParallel, CutsAVocabulary) {
  for (const char* loss : {"cross_entropy", "cross_entropy(label_smoothing=0.1, ignore_index=2)"}) {
    SCOPED_TRACE(loss);
    Case c{.make = tied, .build = with_sgd()};
    c.build.loss = loss;
    const Trained own = expect_same_on_ranks(c, 2, 2);
    EXPECT_EQ(own.cut, 1);
    EXPECT_EQ(own.matrices, 1);
    expect_same_on_ranks(c, 4, 2);
  }
}

// Two ranks have 1,025 words whole, and compute their loss in chunks as one rank does; 1,026 are cut.
TEST(TensorParallel, AVocabularyThatIsNotCutStaysInChunks) {
  for (const int64_t words : {1025, 1026}) {
    const auto make = [words](const BuildOptions& options) {
      return built(from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
        network (float[N, 6] x) => (float[N, )",
                                    words, "] logits) <", matrix("up", 6, 8), ", ", matrix("down", 8, 6), ", ",
                                    matrix("head", 6, static_cast<int>(words)), R"(> {
          u = MatMul (x, up)
          s = Sigmoid (u)
          d = MatMul (s, down)
          logits = MatMul (d, head)
        })")),
                   options);
    };
    LocalRanks(2).run([&](Collectives* own) {
      SessionOptions options;
      options.threads = 1;
      options.topology = {.collectives = own, .tensor = 2};
      Session session(make(with_sgd()), options);
      const Plan& plan = session.plan("accumulate", shapes_of(samples_of(session.model(), 512)));
      EXPECT_EQ(count(plan, "LinearCrossEntropy"), words == 1025 ? 1 : 0);
    });
  }
}

// Of classes that are equal the first one is the best, which another rank than the last has.
TEST(TensorParallel, TheFirstOfEqualClassesIsTheBest) {
  const auto make = [](const BuildOptions& options) {
    return built(from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
      network (float[N, 6] x) => (float[N, 4] logits) <float[4, 6] classes = {)",
                                  "0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1", R"(}> {
        logits = Gemm <transB = 1> (x, classes)
      })")),
                 options);
  };
  expect_same_on_ranks({.make = make, .build = with_sgd()}, 2, 2);
}

TEST(TensorParallel, AnIndexOfNoRowIsAnError) {
  const auto message = [](Collectives* ranks) {
    SessionOptions options;
    options.threads = 1;
    options.topology = {.collectives = ranks, .tensor = 2};
    Session session(tied(with_sgd()), options);
    TensorMap batch = samples_of(session.model(), 2);
    batch.at("tokens").set(3, 10);
    return error_of([&] { session.run(Entry::kPredict, {{"tokens", batch.at("tokens")}}); });
  };
  std::vector<std::string> found(2);
  LocalRanks(2).run([&](Collectives* own) { found[static_cast<size_t>(own->rank())] = message(own); });
  for (const std::string& own : found) EXPECT_THAT(own, HasSubstr("10"));
}

// A part of a mask is that of all parts: what one rank drops is dropped.
TEST(TensorParallel, DropsWhatOneRankDrops) {
  const Case c{.make = [](const BuildOptions& o) { return transformer(o, 0.25F); }, .build = with_sgd()};
  expect_same_on_ranks(c, 2, 2);
}

TEST(TensorParallel, GroupsShareOutBatches) {
  for (const bool sums_once : {false, true}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer}) {
      SCOPED_TRACE(concat("sums once ", sums_once, ", stage ", static_cast<int>(sharding)));
      const Case c{.make = mlp, .build = with_sgd(), .accumulate = 3, .sharding = sharding, .sums_once = sums_once};
      expect_same_on_ranks(c, 4, 2);
    }
  }
}

// Norms of weights, means of their squares and orthogonal updates are those of all parts.
TEST(TensorParallel, UpdatesAreThoseOfWholeWeights) {
  for (const char* optimizer :
       {"adamw(lr=0.001)", "lamb(lr=0.001)", "lars(lr=0.1)", "muon(lr=0.01)", "adafactor(lr=0.001)"}) {
    SCOPED_TRACE(optimizer);
    Case c{.make = mlp};
    c.build.optimizer = optimizer;
    c.build.ema = 0.9;
    EXPECT_GE(expect_same_on_ranks(c, 2, 2, 1e-4).cut, 2);
  }
}

TEST(TensorParallel, MixedPrecisionWithLossScalingTrainsAlike) {
  Case c{.make = mlp, .build = with_sgd()};
  c.build.precision = Precision::kFloat16;
  expect_same_on_ranks(c, 2, 2, 2e-2);  // of sums that are rounded to 11 bits once more
}

// Gradients of one batch, without an update between.
TEST(TensorParallel, GradientsAreThoseOfOneRank) {
  const auto gradients = [](Collectives* ranks, int tensor) {
    SessionOptions options;
    options.threads = 1;
    options.topology = {.collectives = ranks, .tensor = tensor};
    Session session(transformer(with_sgd()), options);
    session.run(Entry::kAccumulate, samples_of(session.model(), 4));
    std::map<std::string, Tensor> sums;
    StateStore& store = session.state();
    for (size_t i = 0; i < store.names().size(); ++i) {
      Tensor value(store.dtype(i), store.shape(i));
      session.collect_state(i, value.data());
      if (store.role(i) && store.role(i)->name == roles::kGradientSum) sums[store.names()[i]] = value;
    }
    return sums;
  };
  const std::map<std::string, Tensor> expected = gradients(nullptr, 1);
  std::map<std::string, Tensor> found;
  LocalRanks(2).run([&](Collectives* own) {
    auto sums = gradients(own, 2);
    if (own->rank() == 0) found = std::move(sums);
  });
  for (const auto& [name, y] : expected) {
    for (int64_t i = 0; i < y.size(); ++i) EXPECT_NEAR(found.at(name).at(i), y.at(i), 1e-5) << name;
  }
}

TEST(TensorParallel, ARankHasHalfOfWhatIsCut) {
  const Model model = transformer({});
  const TensorShares shares = share_out_tensors(model, 2);
  EXPECT_EQ(shares.whole, "");
  EXPECT_EQ(describe(shares), "14 of 14 products and lookups, 86% of the trained weights");
  EXPECT_EQ(shares.cuts.at("head"), (Cut{1, 16}));
  EXPECT_EQ(shares.cuts.at("block0.attention.q"), (Cut{1, 8}));
  EXPECT_EQ(shares.cuts.at("block0.attention.q.bias"), (Cut{0, 8}));
  EXPECT_EQ(shares.cuts.at("block0.attention.out"), (Cut{0, 8}));
  EXPECT_EQ(shares.cuts.at("block0.up"), (Cut{1, 32}));
  EXPECT_EQ(shares.cuts.at("block0.down"), (Cut{0, 32}));
  EXPECT_FALSE(shares.cuts.contains("block0.attention.out.bias"));
  EXPECT_FALSE(shares.cuts.contains("block0.norm1.scale"));
  LocalRanks(2).run([&](Collectives* own) {
    SessionOptions options;
    options.topology = {.collectives = own, .tensor = 2};
    Session session(clone(model), options);
    const StateStore& store = session.state();
    const size_t i = store.index("block0.up");
    EXPECT_EQ(store.kept_bytes(i), 8 * 16 * sizeof(float));
    EXPECT_EQ(store.shape(i), (Shape{8, 32}));
    EXPECT_THAT(error_of([&] { store.get("block0.up"); }), HasSubstr("'block0.up' each rank keeps a part"));
  });
}

// A step, as programs run it, with a group that has all batches; and inference.
TEST(TensorParallel, AGroupOfAllRanksRunsStepsAndPredicts) {
  const auto outputs = [](Collectives* ranks, int tensor) {
    SessionOptions options;
    options.threads = 1;
    options.topology = {.collectives = ranks, .tensor = tensor};
    Session session(make_training_transformer({}), options);
    TensorMap batch = {{"tokens", Tensor(DType::kInt64, {2, 4})}, {"labels", Tensor(DType::kInt64, {2, 4})}};
    for (int64_t i = 0; i < 8; ++i) batch["tokens"].set(i, static_cast<double>(i)), batch["labels"].set(i, i % 5 + 1.0);
    session.run(Entry::kStep, batch);
    return session.run(Entry::kPredict, {{"tokens", batch.at("tokens")}}).begin()->second.clone();
  };
  const Tensor expected = outputs(nullptr, 1);
  std::vector<Tensor> found(2);
  LocalRanks(2).run([&](Collectives* own) { found[static_cast<size_t>(own->rank())] = outputs(own, 2); });
  for (const Tensor& own : found) {
    ASSERT_EQ(own.shape(), expected.shape());
    for (int64_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own.at(i), expected.at(i), 1e-5);
  }
}

TEST(TensorParallel, SaysWhatItDoesNotGoWith) {
  const auto refusal = [](int64_t ranks, const TopologyOptions& options) {
    return error_of([&] { check_ranks(ranks, options); });
  };
  EXPECT_THAT(refusal(1, {.tensor = 2}), HasSubstr("--tensor-parallel is for several processes"));
  EXPECT_THAT(refusal(3, {.tensor = 2}),
              HasSubstr("--tensor-parallel 2 takes 2 processes, one for each part, or a multiple"));
  EXPECT_THAT(refusal(4, {.stages = 2, .tensor = 2}), HasSubstr("leave out --pipeline"));
  EXPECT_THAT(refusal(4, {.sharding = Sharding::kGradients, .tensor = 2}), HasSubstr("or take --zero 1"));
  EXPECT_THAT(refusal(2, {.sharding = Sharding::kOptimizer, .tensor = 2}), HasSubstr("have the same batches"));
  EXPECT_THAT(refusal(2, {.sync_batch_norm = true, .tensor = 2}), HasSubstr("have the same batches"));
}

TEST(TensorParallel, SaysWhyNothingIsCut) {
  const Model model = built(from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    network (float[N, 6] x) => (float[N, 3] logits) <)",
                                             matrix("scale", 0, 6), ", ", matrix("odd", 6, 3), R"(> {
      n = LayerNormalization (x, scale)
      logits = MatMul (n, odd)
    })")),
                            {});
  EXPECT_THAT(error_of([&] { share_out_tensors(model, 2); }),
              HasSubstr("--tensor-parallel 2: no product with a trained weight can be shared out; 'odd': "));
}

}  // namespace
}  // namespace onnx_train::tensor_parallel_test
