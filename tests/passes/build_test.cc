// Whole training models: built from a forward model, run by a session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"

namespace onnx_train::build_test {
namespace {

using testing::HasSubstr;

constexpr const char* kMlp = R"(<ir_version: 10, opset_import: ["" : 21]>
  mlp (float[batch,2] x) => (float[batch,3] logits)
  <float[2,4] w1 = {0.5,-0.3,0.8,0.1, 0.2,0.7,-0.6,0.4}, float[4] b1 = {0.1,0,0.2,-0.1},
   float[4,3] w2 = {0.3,-0.2,0.5, 0.1,0.6,-0.4, -0.5,0.2,0.3, 0.4,-0.1,0.2}, float[3] b2 = {0,0.1,-0.1},
   float[3] spare = {1,2,3}>
  {
    m = MatMul(x, w1)
    a = Add(m, b1)
    h = Tanh(a)
    o = MatMul(h, w2)
    logits = Add(o, b2)
    unused = Add(o, spare)
  })";

Model build(const BuildOptions& options, const char* text = kMlp) {
  Model model = from_text(text);
  infer_types(model.graph.get());
  build_training_model(&model, options);
  return model;
}

BuildOptions with_optimizer(const std::string& optimizer) {
  BuildOptions options;
  options.optimizer = optimizer;
  return options;
}

TensorMap batch(int64_t first, int64_t count) {
  Tensor x(DType::kFloat, {count, 2}), labels(DType::kInt64, {count});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = first + i;
    x.set(2 * i, 0.37 * static_cast<double>(k % 5) - 0.7);
    x.set(2 * i + 1, 0.53 * static_cast<double>(k % 3) - 0.4);
    labels.set(i, static_cast<double>(k % 3));
  }
  return {{"x", x}, {"labels", labels}};
}

void expect_near(const Tensor& a, const Tensor& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  for (int64_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a.at(i), b.at(i), tolerance) << what << ", element " << i;
}

class Optimizers : public testing::TestWithParam<const char*> {};

TEST_P(Optimizers, TheLossFalls) {
  Session session(build(with_optimizer(GetParam())));
  const double first = session.run("step", batch(0, 15)).at("loss").at(0);
  for (int i = 0; i < 200; ++i) session.run("step", batch(0, 15));
  const auto& after = session.run("evaluate", batch(0, 15));
  EXPECT_LT(after.at("loss").at(0), 0.7 * first);
  EXPECT_GT(after.at("accuracy").at(0), 0.5);
  EXPECT_EQ(session.state().get("state/step").at(0), 201);
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers,
                         testing::Values("sgd(lr=0.5)", "sgd(lr=0.2, momentum=0.9)",
                                         "sgd(lr=0.1, momentum=0.9, nesterov=true)", "adam(lr=0.05)",
                                         "adamw(lr=0.05, weight_decay=0.01)"));

TEST(Build, EveryEntryPointIsAValidModel) {
  for (const bool accumulate : {false, true}) {
    BuildOptions options;
    options.accumulate = accumulate;
    options.clip_norm = 1;
    const Model model = build(options);
    for (const EntryPoint& entry : model.entry_points) {
      onnx::ModelProto proto;
      to_proto(flatten(model, entry.name()), &proto);
      EXPECT_NO_THROW(check_proto(proto)) << entry.name();
    }
  }
}

TEST(Build, WeightsThatDoNotReachTheLossAreReported) {
  const Model model = build({});
  EXPECT_EQ(model.metadata("onnx_train.not_trained"), R"(["spare"])");
  EXPECT_EQ(model.metadata("onnx_train.mode"), "train");
}

TEST(Build, NothingToTrainIsAnError) {
  BuildOptions options;
  options.train = {"spare"};
  try {
    build(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("depends on no weight to train"));
  }
  options.train = {};
  options.freeze = {"*"};
  try {
    build(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--train and --freeze leave nothing of the model to train"));
  }
}

TEST(Build, ClippingScalesTheUpdate) {
  BuildOptions options = with_optimizer("sgd(lr=1)");
  Session free(build(options));
  options.clip_norm = 0.01;
  Session clipped(build(options));
  const Tensor before = free.state().get("w2");
  const double norm = free.run("step", batch(0, 15)).at("grad_norm").at(0);
  EXPECT_NEAR(clipped.run("step", batch(0, 15)).at("grad_norm").at(0), norm, 1e-6);
  const double scale = 0.01 / (norm + 1e-6);
  const Tensor a = free.state().get("w2"), b = clipped.state().get("w2");
  for (int64_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(b.at(i) - before.at(i), scale * (a.at(i) - before.at(i)), 1e-7);
  }
}

class Accumulation : public testing::TestWithParam<const char*> {};

TEST_P(Accumulation, OfMicroBatchesEqualsOneBatch) {
  BuildOptions options = with_optimizer("adamw(lr=0.05)");
  options.loss = GetParam();
  Session whole(build(options));
  options.accumulate = true;
  Session parts(build(options));
  for (int step = 0; step < 3; ++step) {
    const double norm = whole.run("step", batch(0, 12)).at("grad_norm").at(0);
    for (int64_t micro = 0; micro < 3; ++micro) parts.run("accumulate", batch(4 * micro, 4));
    EXPECT_NEAR(parts.run("apply", {}).at("grad_norm").at(0), norm, 1e-5);
  }
  EXPECT_EQ(parts.state().get("state/step").at(0), 3);
  if (options.loss == "cross_entropy") {
    EXPECT_EQ(parts.state().get("state/accumulated").at(0), 12);
  }
  for (const char* name : {"w1", "b1", "w2", "b2", "state/w1/exp_avg", "state/w2/exp_avg_sq"}) {
    expect_near(parts.state().get(name), whole.state().get(name), 1e-5, name);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Accumulation, testing::Values("cross_entropy", "cross_entropy(reduction=sum)"));

}  // namespace
}  // namespace onnx_train::build_test
