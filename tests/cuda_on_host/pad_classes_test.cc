// Output layers: which get padding columns. Results do not change.
#include <gtest/gtest.h>

#include <map>

#include "kernels/cuda/support/device.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::pad_classes_test {
namespace {

constexpr int64_t kSamples = 3, kTokens = 4, kWidth = 16, kClasses = 1030, kColumns = 1088;

struct Head {
  int64_t classes = kClasses;
  bool transposed = true;  // the weight is [classes, width]
  bool has_bias = true;
  bool is_matrix = false;  // x is [samples, width]
  const char* precision = "bf16";
  const char* loss = "cross_entropy";
};

Model training_model(const Head& head) {
  Model model = empty_model();
  Builder b(model.graph.get());
  unsigned seed = 0;
  const auto weight = [&](const char* name, const Shape& shape) {
    return b.var(b.graph().add_initializer(name, random_tensor(DType::kFloat, shape, ++seed)));
  };
  const Dims dims = head.is_matrix ? Dims{kSamples, kWidth} : Dims{kSamples, kTokens, kWidth};
  const Var x = b.var(b.graph().add_input("x", {DType::kFloat, dims}));
  const Var hidden = b.op("Tanh", {matmul(x, weight("first", {kWidth, kWidth}))});
  const Var w = weight("w", head.transposed ? Shape{head.classes, kWidth} : Shape{kWidth, head.classes});
  Var logits = matmul(hidden, head.transposed ? transpose(w, {1, 0}) : w);
  if (head.has_bias) logits = logits + weight("bias", {head.classes});
  b.graph().rename(logits.value(), "logits");
  b.graph().add_output(logits.value());
  BuildOptions options;
  options.loss = head.loss;
  options.optimizer = "sgd(momentum=0.9)";
  options.precision = parse_precision(head.precision);
  build_training_model(&model, options);
  return model;
}

TensorMap batch_of(const Head& head) {
  Tensor labels(DType::kInt64, head.is_matrix ? Shape{kSamples} : Shape{kSamples, kTokens});
  for (int64_t i = 0; i < labels.size(); ++i)
    labels.set(i, static_cast<double>(i == 1 ? -100 : (head.classes - 1 + 7 * i) % head.classes));
  const Shape shape = head.is_matrix ? Shape{kSamples, kWidth} : Shape{kSamples, kTokens, kWidth};
  return {{"x", random_tensor(DType::kFloat, shape, 99)}, {"labels", labels}};
}

struct Trained {
  int64_t columns = 0;  // columns of the largest product
  std::vector<double> metrics;
  std::map<std::string, Tensor> states;
};

Trained train(const Head& head, const std::vector<std::string>& without) {
  SessionOptions options = on(&cuda_device());
  options.plan.lowering.without = without;
  Session session(training_model(head), options);
  const TensorMap batch = batch_of(head);
  Trained result;
  for (const PlanStep& step : session.plan("step", shapes_of(batch)).steps()) {
    const std::string& op = step.node->op();
    if (op == "MatMul" || op == "Gemm" || op == "TransposedMatMul")
      result.columns = std::max(result.columns, step.node->output()->type().shape().back());
  }
  for (int i = 0; i < 3; ++i) {
    const auto results = session.run("step", batch);
    for (const char* metric : {"loss", "accuracy", "grad_norm"}) result.metrics.push_back(results.at(metric).at(0));
  }
  result.states = states_of(session);
  return result;
}

TEST(CudaPadClasses, ResultsAreThoseOfTheVocabularyAsItIs) {
  for (const Head& head : {Head{}, Head{.transposed = false}, Head{.has_bias = false, .precision = "fp16"},
                           Head{.transposed = false, .is_matrix = true, .loss = "cross_entropy(label_smoothing=0.1)"},
                           Head{.is_matrix = true, .loss = "cross_entropy(reduction=sum)"}}) {
    SCOPED_TRACE(testing::Message() << head.transposed << head.has_bias << head.is_matrix << head.precision
                                    << head.loss);
    const Trained got = train(head, {}), wanted = train(head, {"pad_classes"});
    EXPECT_EQ(wanted.columns, kClasses);
    EXPECT_EQ(got.columns, kColumns);
    for (size_t i = 0; i < got.metrics.size(); ++i)
      EXPECT_NEAR(got.metrics[i], wanted.metrics[i], 1e-5 * std::abs(wanted.metrics[i]));
    for (const auto& [name, state] : wanted.states) {
      EXPECT_EQ(got.states.at(name).shape(), state.shape());
      EXPECT_LT(relative_error(got.states.at(name), state), 1e-5) << name;
    }
  }
}

TEST(CudaPadClasses, OthersStayAsTheyAre) {
  const Head whole{.classes = 1032}, few{.classes = 102}, wide{.precision = "float32"},
      products{.precision = "gemm-bf16"};
  for (const Head& head : {whole, few, wide, products}) {
    SCOPED_TRACE(testing::Message() << head.classes << head.precision);
    EXPECT_EQ(train(head, {}).columns, head.classes);
  }
}

TEST(CudaPadClasses, LabelsBehindTheClassesAreRefused) {
  const Head head;
  Session session(training_model(head), on(&cuda_device()));
  TensorMap batch = batch_of(head);
  session.run("step", batch);
  const auto before = states_of(session);
  batch.at("labels").set(5, kClasses);
  try {
    session.run("step", batch);
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("label 1030 at position 5 is outside the 1030 classes"), std::string::npos)
        << error.what();
  }
  expect_equal(states_of(session), before);
}

}  // namespace
}  // namespace onnx_train::pad_classes_test
