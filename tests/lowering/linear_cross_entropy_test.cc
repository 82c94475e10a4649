// The pass linear_cross_entropy: what it replaces and what it leaves, whole steps against the nodes that it replaces,
// and the kernel against sums written out.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cuda/support/device.h"
#include "kernels/geometry/linear_loss.h"
#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::linear_cross_entropy_test {
namespace {

constexpr int64_t kClasses = 1030, kWidth = 8, kTokens = 100;
constexpr double kTolerance = 1e-6;

// A language model without layers between its embedding and its head.
struct Example {
  bool tied = false, biased = false, gemm = false, two_heads = false, casts = false, divides = false;
  double scale = 1, cap = 0;
  std::string loss = "cross_entropy(logits, labels)";
  std::vector<std::string> freeze = {};
  Precision precision = Precision::kFloat32;
  std::vector<std::string> metrics = {};
  int64_t classes = kClasses;
};

Var logits_of(const Example& e, Var h, Var table) {
  Builder& b = h.builder();
  const auto weight = [&](const char* name, const Shape& shape) {
    return b.var(b.graph().add_initializer(name, random_tensor(DType::kFloat, shape, 3)));
  };
  Var logits;
  if (e.gemm) {
    const Var rows = reshape(h, std::vector<int64_t>{-1, kWidth});
    logits = b.op("Gemm", {rows, weight("head", {e.classes, kWidth}), weight("bias", {e.classes})}, {{"transB", 1}});
    logits = reshape(logits, std::vector<int64_t>{-1, kTokens, e.classes});
  } else {
    logits = matmul(h, e.tied ? transpose(table, {1, 0}) : weight("head", {kWidth, e.classes}));
    if (e.biased) logits = logits + weight("bias", {e.classes});
  }
  if (e.casts) logits = b.op("Cast", {logits}, {{"to", static_cast<int64_t>(DType::kFloat)}});
  if (e.divides) logits = logits / 8.0;
  if (e.scale != 1) logits = e.biased ? e.scale * logits : logits * e.scale;
  return e.cap == 0 ? logits : tanh(logits / e.cap) * e.cap;
}

Model model_of(const Example& e) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const Var tokens = b.var(graph.add_input("tokens", {DType::kInt64, Dims{"batch", kTokens}}));
  const Var table = b.var(graph.add_initializer("table", random_tensor(DType::kFloat, {e.classes, kWidth}, 1)));
  const Var gamma = b.var(graph.add_initializer("gamma", random_tensor(DType::kFloat, {kWidth}, 2)));
  const Var logits = logits_of(e, b.op("LayerNormalization", {gather(table, tokens, 0), gamma}), table);
  graph.rename(logits.value(), "logits");
  graph.add_output(logits.value());
  if (e.two_heads) {
    const Var other =
        matmul(gather(table, tokens, 0),
               b.var(graph.add_initializer("other_head", random_tensor(DType::kFloat, {kWidth, e.classes}, 4))));
    graph.rename(other.value(), "other");
    graph.add_output(other.value());
  }
  onnx::ModelProto proto;
  to_proto(model, &proto);
  Model imported = import_model(std::move(proto));
  BuildOptions options;
  options.loss = e.loss;
  options.precision = e.precision;
  options.freeze = e.freeze;
  options.metrics = e.metrics;
  options.optimizer = "sgd";
  build_training_model(&imported, options);
  return imported;
}

// `batch` texts. Some labels are ignored.
TensorMap batch_of(int64_t batch = 6, bool ignores_all = false, double ignored = -100, int64_t classes = kClasses) {
  Tensor tokens(DType::kInt64, {batch, kTokens}), labels(DType::kInt64, {batch, kTokens});
  for (int64_t i = 0; i < tokens.size(); ++i) {
    tokens.set(i, static_cast<double>(i * 37 % classes));
    labels.set(i, ignores_all || i % 11 == 3 ? ignored : static_cast<double>(i * 53 % classes));
  }
  return {{"tokens", tokens}, {"labels", labels}};
}

struct Results {
  std::map<std::string, Tensor> tensors;  // states after two steps, outputs of the second one and of an evaluation
  int calls = 0, evaluating_calls = 0;    // of LinearCrossEntropy
  size_t arena = 0, evaluating_arena = 0;
};

struct How {
  std::vector<std::string> without = {};
  int threads = 1;
  Device* device = nullptr;  // null: the CPU
};

Results train(const Example& e, const TensorMap& batch, const How& how = {}) {
  SessionOptions options;
  options.threads = how.threads;
  options.plan.lowering.without = how.without;
  options.device = how.device;
  Session session(model_of(e), options);
  Results results;
  session.run("step", batch);
  for (const auto& [name, tensor] : session.run("step", batch)) results.tensors["step " + name] = tensor.clone();
  for (const auto& [name, tensor] : session.run("evaluate", batch)) results.tensors["eval " + name] = tensor.clone();
  results.tensors.merge(states_of(session));
  const auto look = [&](const char* entry, int* calls, size_t* arena) {
    const Plan& plan = session.plan(entry, shapes_of(batch));
    *calls = count(plan, "LinearCrossEntropy"), *arena = plan.arena_bytes();
  };
  look("step", &results.calls, &results.arena);
  look("evaluate", &results.evaluating_calls, &results.evaluating_arena);
  return results;
}

// Each tensor differs by at most `tolerance` of its norm.
void expect_near(const Results& a, const Results& b, double tolerance) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    const Tensor& other = b.tensors.at(name);
    ASSERT_EQ(tensor.shape(), other.shape()) << name;
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < tensor.size(); ++i) {
      difference += std::pow(tensor.at(i) - other.at(i), 2), norm += std::pow(other.at(i), 2);
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name;
  }
}

// Both entry points of the first have `calls` calls, those of the second none.
void expect_calls(const Results& with, const Results& without, int calls) {
  EXPECT_EQ(with.calls, calls);
  EXPECT_EQ(with.evaluating_calls, calls);
  EXPECT_EQ(without.calls + without.evaluating_calls, 0);
}

// Trains with the pass and without it, whose results are compared.
void compare(const Example& e, double tolerance = kTolerance, const TensorMap& batch = batch_of()) {
  const Results with = train(e, batch), without = train(e, batch, {.without = {"linear_cross_entropy"}});
  expect_calls(with, without, e.two_heads ? 2 : 1);
  expect_near(with, without, tolerance);
}

TEST(LinearCrossEntropy, TrainsLikeTheNodesThatItReplaces) {
  for (const bool tied : {true, false}) compare({.tied = tied});
  compare({.biased = true});
  compare({.gemm = true});
  compare({.loss = "cross_entropy(logits, labels, label_smoothing=0.1, reduction=sum)"});
  compare({.tied = true, .loss = "0.5 * cross_entropy(logits, labels, ignore_index=7)"}, kTolerance,
          batch_of(6, false, 7));
}

TEST(LinearCrossEntropy, ComputesWhatScalesAndBoundsTheLogits) {
  compare({.scale = 0.25});
  compare({.tied = true, .casts = true, .divides = true});
  compare({.tied = true, .cap = 3});
  compare({.biased = true, .scale = 0.5, .cap = 2});
}

// Top-k and perplexity ask for the scores of labels; with class weights and smoothing these are still of the logits.
TEST(LinearCrossEntropy, GivesWhatMetricsAsk) {
  const std::vector<std::string> metrics = {"perplexity", "top5=top_k(k=5)", "top1=top_k(k=1)"};
  compare({.tied = true, .cap = 3, .metrics = metrics});
  compare({.loss = "cross_entropy(logits, labels, label_smoothing=0.1, ignore_index=7)", .metrics = metrics},
          kTolerance, batch_of(6, false, 7));
  compare({.biased = true, .precision = Precision::kBfloat16, .metrics = metrics}, 1e-3);
}

TEST(LinearCrossEntropy, LeavesOutGradientsThatNothingReads) {
  compare({.freeze = {"head"}});
  compare({.biased = true, .freeze = {"table", "gamma"}});
}

TEST(LinearCrossEntropy, OfSeveralHasOneAccuracy) {
  compare({.two_heads = true, .loss = "cross_entropy(logits, labels) + 0.5 * cross_entropy(other, labels)"});
}

TEST(LinearCrossEntropy, MayFindNoLabelThatCounts) { compare({.biased = true}, kTolerance, batch_of(6, true)); }

TEST(LinearCrossEntropy, TrainsInSixteenBits) {
  for (const Precision precision : {Precision::kBfloat16, Precision::kFloat16}) {
    for (const bool tied : {true, false}) compare({.tied = tied, .precision = precision}, 1e-3);
    compare({.gemm = true, .precision = precision}, 1e-3);
    // Fewer numbers are rounded between the product and the logits.
    compare({.biased = true, .scale = 0.5, .cap = 2, .precision = precision}, 1e-2);
  }
}

TEST(LinearCrossEntropy, GivesTheSameBitsWithAnyNumberOfThreads) {
  if (cpu::isa() < cpu::Isa::kAvx2) GTEST_SKIP() << "OpenBLAS's products depend on the number of threads";
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const Example e{.biased = true, .precision = precision};
    expect_equal(train(e, batch_of()).tensors, train(e, batch_of(), {.threads = 2}).tensors);
  }
}

TEST(LinearCrossEntropy, TakesLessMemory) {
  const TensorMap batch = batch_of(24);
  const Results with = train({.tied = true}, batch),
                without = train({.tied = true}, batch, {.without = {"linear_cross_entropy"}});
  const size_t logits = sizeof(float) * 24 * kTokens * kClasses;
  EXPECT_LT(with.arena + logits / 2, without.arena);
  EXPECT_LT(with.evaluating_arena + logits / 2, without.evaluating_arena);
}

// Half of the positions, and the gradients of the weights, whatever the number of words.
TEST(LinearCrossEntropy, HoldsAChunkOfAnyVocabulary) {
  constexpr int64_t kPositions = 6 * kTokens;
  for (const int64_t classes : {1024, 150000}) {
    SCOPED_TRACE(classes);
    const Example e{.tied = true, .classes = classes};
    const TensorMap batch = batch_of(6, false, -100, classes);
    const Results with = train(e, batch), without = train(e, batch, {.without = {"linear_cross_entropy"}});
    expect_calls(with, without, 1);
    expect_near(with, without, kTolerance);
    const auto rows = [&](int64_t count) { return sizeof(float) * static_cast<size_t>(count * classes); };
    constexpr size_t kOthers = 1 << 19;
    EXPECT_LT(with.arena, rows(kPositions / 2 + 8 * kWidth) + kOthers);
    EXPECT_GT(without.arena, rows(kPositions));
  }
}

TEST(LinearCrossEntropy, NamesALabelThatIsNoClass) {
  TensorMap batch = batch_of();
  batch["labels"].set(17, kClasses);
  Session session(model_of({}));
  try {
    session.run("step", batch);
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(concat(kClasses)), std::string::npos) << error.what();
  }
}

TEST(LinearCrossEntropy, LeavesLogitsThatOthersRead) {
  EXPECT_EQ(train({}, batch_of(4)).calls, 0) << "few positions";
  EXPECT_EQ(train({.loss = "cross_entropy(logits, labels) + 0.001 * mse(logits, wanted)"},
                  [] {
                    TensorMap batch = batch_of();
                    batch["wanted"] = Tensor::full(DType::kFloat, {6, kTokens, kClasses}, 0.5);
                    return batch;
                  }())
                .calls,
            0);
}

// ---- On CUDA, captured

constexpr int64_t kFew = 1024;  // classes: a warp for each row, which the host runs faster than a block
constexpr int64_t kTexts = 21;  // 2,100 positions: two chunks, the second of fewer rows

void compare_on_cuda(const Example& e, double tolerance) {
  const TensorMap batch = batch_of(kTexts, false, -100, e.classes);
  const Results with = train(e, batch, {.device = &cuda_device()}),
                without = train(e, batch, {.without = {"linear_cross_entropy"}, .device = &cuda_device()});
  expect_calls(with, without, 1);
  expect_near(with, without, tolerance);
  const size_t logits = (e.precision == Precision::kFloat32 ? 4 : 2) * kTexts * kTokens * e.classes;
  EXPECT_LT(with.arena + logits / 3, without.arena);
}

TEST(CudaLinearCrossEntropy, TrainsLikeTheNodesThatItReplaces) {
  compare_on_cuda({.gemm = true, .cap = 3, .loss = "cross_entropy(label_smoothing=0.1)", .classes = kFew}, 1e-6);
}

TEST(CudaLinearCrossEntropy, TrainsInSixteenBits) {
  compare_on_cuda({.tied = true, .scale = 0.5, .precision = Precision::kBfloat16, .classes = kFew}, 1e-2);
  compare_on_cuda({.gemm = true, .precision = Precision::kFloat16, .classes = kFew}, 1e-3);
}

TEST(CudaLinearCrossEntropy, LeavesFewPositionsAndMisalignedRows) {
  Session few(model_of({}), on(&cuda_device()));
  EXPECT_EQ(count(few.plan("step", shapes_of(batch_of(20))), "LinearCrossEntropy"), 0);
  Session misaligned(model_of({.tied = true, .precision = Precision::kBfloat16}), on(&cuda_device()));
  EXPECT_EQ(count(misaligned.plan("step", shapes_of(batch_of(kTexts))), "LinearCrossEntropy"), 0);
}

TEST(CudaLinearCrossEntropy, ALabelThatIsNoClassLeavesTheStateAsItWas) {
  TensorMap batch = batch_of(kTexts, false, -100, kFew);
  batch["labels"].set(17, kFew);
  Session session(model_of({.classes = kFew}), on(&cuda_device()));
  const auto before = states_of(session);
  EXPECT_THROW(session.run("step", batch), Error);
  expect_equal(states_of(session), before);
}

TEST(CudaLinearCrossEntropy, AChunkHasAsManyRowsAsTheLayerIsWide) {
  EXPECT_EQ(chunk_rows_on_gpu(2047, 768), 0);
  EXPECT_EQ(chunk_rows_on_gpu(2048, 768), 1024);
  EXPECT_EQ(chunk_rows_on_gpu(8000, 768), 1152);
  EXPECT_EQ(chunk_rows_on_gpu(8000, 4096), 0);
  EXPECT_EQ(chunk_rows_on_gpu(16384, 4096), 4096);
}

// ---- The kernel alone

// Everything in float64, one position after the other.
struct Sums {
  double loss = 0;
  Tensor correct, dh, dw, dbias;
};

Sums written_out(const Tensor& h, const Tensor& w, const Tensor& labels, const Tensor& bias, double dloss) {
  const int64_t rows = labels.size(), classes = w.shape()[0], width = w.shape()[1];
  const double* const table = w.data<double>();
  Sums sums{0, Tensor(DType::kBool, labels.shape()), Tensor::full(DType::kDouble, h.shape(), 0),
            Tensor::full(DType::kDouble, w.shape(), 0), Tensor::full(DType::kDouble, bias.shape(), 0)};
  double counted = 0;
  for (int64_t i = 0; i < rows; ++i) counted += labels.at(i) != -100;
  std::vector<double> logits(static_cast<size_t>(classes));
  for (int64_t i = 0; i < rows; ++i) {
    const auto label = static_cast<int64_t>(labels.at(i));
    sums.correct.set(i, false);
    if (label == -100) continue;
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      double& x = logits[static_cast<size_t>(c)] = bias.at(c);
      for (int64_t k = 0; k < width; ++k) x += h.at(i * width + k) * table[c * width + k];
      sum += std::exp(x);
    }
    sums.loss += (std::log(sum) - logits[static_cast<size_t>(label)]) / counted;
    sums.correct.set(i, std::max_element(logits.begin(), logits.end()) - logits.begin() == label);
    for (int64_t c = 0; c < classes; ++c) {
      const double d = dloss / counted * (std::exp(logits[static_cast<size_t>(c)]) / sum - (c == label));
      sums.dbias.data<double>()[c] += d;
      for (int64_t k = 0; k < width; ++k) {
        sums.dh.data<double>()[i * width + k] += d * table[c * width + k];
        sums.dw.data<double>()[c * width + k] += d * h.at(i * width + k);
      }
    }
  }
  return sums;
}

Attrs attributes() {
  return {{"axis", -1},
          {"ignore_index", -100},
          {"label_smoothing", Tensor::scalar(0.0)},
          {"reduction", "mean"},
          {"transposed", 1},
          {"scale", Tensor::scalar(1.0)},
          {"cap", Tensor::scalar(0.0)},
          {"rounding", 0},
          {"narrow", 0},
          {"rows", 0}};
}

TEST(LinearCrossEntropy, AgreesWithSumsWrittenOut) {
  const std::pair<int64_t, int64_t> kSizes[] = {{1, 5}, {1400, 5}, {600, 1000}, {3, 150000}};
  for (const auto& [rows, classes] : kSizes) {
    for (const bool ignores : {false, true}) {
      const Tensor h = random_tensor(DType::kDouble, {rows, 4}, 1), w = random_tensor(DType::kDouble, {classes, 4}, 2);
      const Tensor bias = random_tensor(DType::kDouble, {classes}, 3);
      Tensor labels(DType::kInt64, {rows});
      for (int64_t i = 0; i < rows; ++i) labels.set(i, ignores && i % 3 == 1 ? -100 : static_cast<double>(i % classes));
      const Sums want = written_out(h, w, labels, bias, 2);
      const auto got = run_node("LinearCrossEntropy", {h, w, labels, bias, {}, Tensor::full(DType::kDouble, {}, 2)},
                                attributes(), 7, kDomain);
      EXPECT_NEAR(got[0].at(0), want.loss, 1e-11 * want.loss);
      EXPECT_EQ(relative_error(got[1], want.correct), 0);
      EXPECT_LE(relative_error(got[4], want.dh), 1e-11);
      EXPECT_LE(relative_error(got[5], want.dw), 1e-11);
      EXPECT_LE(relative_error(got[6], want.dbias), 1e-11);
    }
  }
}

// Whatever they hold: a row of zeros would make numbers that are none of these.
TEST(LinearCrossEntropy, IgnoredLabelsHaveNoRowInAnyProduct) {
  constexpr int64_t kRows = 600, kWords = 1000;
  Tensor h = random_tensor(DType::kDouble, {kRows, 4}, 1), labels(DType::kInt64, {kRows});
  for (int64_t i = 0; i < kRows; ++i) labels.set(i, i % 3 == 1 ? -100 : static_cast<double>(i));
  const Tensor w = random_tensor(DType::kDouble, {kWords, 4}, 2), dloss = Tensor::full(DType::kDouble, {}, 2);
  const auto run = [&](double ignored) {
    for (int64_t i = 1; i < kRows; i += 3) h.set(4 * i + 2, ignored);
    return run_node("LinearCrossEntropy", {h, w, labels, {}, {}, dloss}, attributes(), 6, kDomain);
  };
  const auto expected = run(1), got = run(std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(relative_error(got[i], expected[i]), 0) << i;
}

TEST(LinearCrossEntropy, TheFirstOfEqualLogitsIsTheLargest) {
  const Tensor h = Tensor::full(DType::kFloat, {4, 1}, 1), labels = Tensor::of<int64_t>({4}, {0, 1, 2, 3});
  const Tensor w = Tensor::of<float>({5, 1}, {1, 3, 3, 2, 3});
  const auto got = run_node("LinearCrossEntropy", {h, w, labels}, attributes(), 2, kDomain);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(got[1].at(i), i == 1);
}

}  // namespace
}  // namespace onnx_train::linear_cross_entropy_test
