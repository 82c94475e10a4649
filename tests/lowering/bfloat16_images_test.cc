// Convolutional networks in bfloat16: what the lowering passes make of the roundings between two convolutions changes
// no bit of a training step.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cpu/support/cpu_features.h"
#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/passes.h"
#include "runtime/plan/plan_report.h"
#include "runtime/session/session.h"
#include "tests/support/run_node.h"

namespace onnx_train::bfloat16_images_test {
namespace {

using Names = std::vector<std::string>;

// Image x to y; all other inputs of the text are weights.
Model training_model(const char* text, Mode mode = Mode::kTrain, const Names& freeze = {}) {
  Model model = from_text(text);
  Graph& graph = *model.graph;
  unsigned seed = 1;
  for (Value* input : std::vector<Value*>(graph.inputs())) {
    if (input->name() == "x") continue;
    const std::string name = input->name();
    Tensor tensor = random_tensor(DType::kFloat, input->type().shape(), ++seed);
    // Variances are positive.
    for (int64_t i = 0; name.starts_with("var") && i < tensor.size(); ++i) tensor.set(i, tensor.at(i) + 1.5);
    Value* weight = graph.add_initializer(graph.unique_name("weight"), tensor);
    graph.replace(input, weight);
    graph.remove_input(input);
    graph.rename(weight, name);
  }
  infer_types(&graph);
  BuildOptions options;
  options.precision = Precision::kBfloat16;
  options.loss = "mse(y, target)";
  options.optimizer = "sgd(momentum=0.9)";
  options.mode = mode;
  options.freeze = freeze;
  build_training_model(&model, options);
  return model;
}

TensorMap batch_for(const Model& model) {
  const auto given = [&](const char* name, unsigned seed) {
    return random_tensor(DType::kFloat, model.graph->find(name)->type().shape(), seed);
  };
  return {{"x", given("x", 77)}, {"target", given("y", 78)}, {"learning_rate", Tensor::scalar(0.25f)}};
}

// All results of two steps, states included, with the passes `without` left out; and how many nodes of each operator
// the plan has, and how many images of the forward pass are stored in float32.
struct Trained {
  TensorMap results;
  std::map<std::string, int> operators;
  int float_images = 0;
};

constexpr int64_t kImage = 2000;  // elements

Trained train(const Model& model, const Names& without, int threads = 1) {
  set_num_threads(threads);
  SessionOptions options;
  options.plan.lowering.without = without;
  Session session(clone(model), options);
  const TensorMap batch = batch_for(model);
  session.run("step", batch);
  Trained run;
  for (const auto& [name, tensor] : session.run("step", batch)) run.results[name] = tensor.clone();
  for (const std::string& name : state_of(model, "step")) run.results[name] = session.contents(name).clone();
  const Plan& plan = session.plan("step", shapes_of(batch));
  for (const Node* node : plan.model().graph->nodes()) {
    ++run.operators[operator_text(*node)];
    for (const Value* output : node->outputs()) {
      const bool forward = output && output->name().starts_with("train/");
      const bool image = forward && num_elements(output->type().shape()) > kImage;
      run.float_images += image && output->dtype() == DType::kFloat;
    }
  }
  set_num_threads(2);
  return run;
}

void expect_same_bits(const Trained& got, const Trained& wanted, const std::string& what) {
  ASSERT_EQ(got.results.size(), wanted.results.size());
  for (const auto& [name, tensor] : wanted.results) {
    const Tensor& other = got.results.at(name);
    ASSERT_EQ(other.shape(), tensor.shape());
    const size_t bytes = static_cast<size_t>(tensor.size()) * size_of(tensor.dtype());
    EXPECT_EQ(std::memcmp(other.data(), tensor.data(), bytes), 0) << what << " changes " << name;
  }
}

// Layouts and convolutions are the same on both sides: their sums have orders of their own.
void expect_same_bits(const Model& model) {
  const Names passes = {"round_once", "fuse_batch_normalization", "narrow_storage"};
  for (const Names& layout : {Names(), Names{"channels_last"}}) {
    const Trained all = train(model, layout);
    for (const std::string& pass : passes) {
      Names without = layout;
      without.push_back(pass);
      expect_same_bits(train(model, without), all, "without " + pass + (layout.empty() ? "" : ", channels first, it"));
    }
    Names without = layout;
    without.insert(without.end(), passes.begin(), passes.end());
    expect_same_bits(train(model, without), all, "without all of them it");
  }
}

// A residual block as it is and one with a convolution on the other way, long rows and short ones.
constexpr const char* kResidual = R"(<ir_version: 10, opset_import: ["" : 21]>
  g (float[4,3,12,12] x, float[20,3,3,3] w0, float[20,20,3,3] w1, float[20,20,3,3] w2, float[37,20,3,3] w3,
     float[37,37,3,3] w4, float[37,20,1,1] w5, float[37,6] w6, float[6] b6,
     float[20] s0, float[20] b0, float[20] mean0, float[20] var0, float[20] s1, float[20] b1, float[20] mean1,
     float[20] var1, float[20] s2, float[20] b2, float[20] mean2, float[20] var2, float[37] s3, float[37] b3,
     float[37] mean3, float[37] var3, float[37] s4, float[37] b4, float[37] mean4, float[37] var4, float[37] s5,
     float[37] b5, float[37] mean5, float[37] var5) => (float[4,6] y) {
    c0 = Conv <pads = [1, 1, 1, 1]> (x, w0)
    n0 = BatchNormalization (c0, s0, b0, mean0, var0)
    r0 = Relu (n0)
    c1 = Conv <pads = [1, 1, 1, 1]> (r0, w1)
    n1 = BatchNormalization (c1, s1, b1, mean1, var1)
    r1 = Relu (n1)
    c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2)
    n2 = BatchNormalization (c2, s2, b2, mean2, var2)
    a2 = Add (n2, r0)
    r2 = Relu (a2)
    c3 = Conv <pads = [1, 1, 1, 1], strides = [3, 3]> (r2, w3)
    n3 = BatchNormalization (c3, s3, b3, mean3, var3)
    r3 = Relu (n3)
    c4 = Conv <pads = [1, 1, 1, 1]> (r3, w4)
    n4 = BatchNormalization (c4, s4, b4, mean4, var4)
    c5 = Conv <strides = [3, 3]> (r2, w5)
    n5 = BatchNormalization (c5, s5, b5, mean5, var5)
    a5 = Add (n4, n5)
    r5 = Relu (a5)
    p = GlobalAveragePool (r5)
    f = Flatten (p)
    y = Gemm (f, w6, b6)
  })";

// Normalization in front of the convolution: what is normalized has another reader, and its gradient is a sum.
constexpr const char* kNormalizedFirst = R"(<ir_version: 10, opset_import: ["" : 21]>
  g (float[3,4,9,7] x, float[12,4,3,3] w0, float[12,12,3,3] w1, float[12] s0, float[12] b0, float[12] mean0,
     float[12] var0, float[12] s1, float[12] b1, float[12] mean1, float[12] var1) => (float[3,12,4,3] y) {
    c0 = Conv <pads = [1, 1, 1, 1]> (x, w0)
    n0 = BatchNormalization (c0, s0, b0, mean0, var0)
    r0 = Relu (n0)
    c1 = Conv <pads = [1, 1, 1, 1]> (r0, w1)
    a = Add (c1, c0)
    n1 = BatchNormalization (a, s1, b1, mean1, var1)
    l = LeakyRelu (n1)
    m = Max (l, a)
    p = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (m)
    q = GlobalMaxPool (m)
    y = Add (p, q)
  })";

// Windows side by side and overlapping, with padding and without, on images of several blocks of channels and on ones
// so large that a block has fewer.
constexpr const char* kPools = R"(<ir_version: 10, opset_import: ["" : 21]>
  g (float[2,3,50,48] x, float[70,3,1,1] w0, float[70,1,1] s0, float[70,70,3,3] w1, float[70,70,3,3] w2) => (float[2,70,5,5] y) {
    c0 = Conv (x, w0)
    d0 = Mul (c0, s0)
    m0 = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (d0)
    c1 = Conv <pads = [1, 1, 1, 1]> (m0, w1)
    r1 = Relu (c1)
    a1 = AveragePool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 0], count_include_pad = 1> (r1)
    m1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (a1)
    c2 = Conv <pads = [1, 1, 1, 1]> (m1, w2)
    y = AveragePool <kernel_shape = [3, 2]> (c2)
  })";

TEST(Bfloat16Images, PoolsKeepTheirBits) { expect_same_bits(training_model(kPools)); }

TEST(Bfloat16Images, ResidualNetworksKeepTheirBits) { expect_same_bits(training_model(kResidual)); }

TEST(Bfloat16Images, NormalizationInFrontKeepsItsBits) { expect_same_bits(training_model(kNormalizedFirst)); }

TEST(Bfloat16Images, FrozenStatisticsKeepTheirBits) {
  expect_same_bits(training_model(kResidual, Mode::kFrozen));
  expect_same_bits(training_model(kNormalizedFirst, Mode::kFrozen));
}

// The gradients of convolutions' weights are oneDNN's sums, whose order depends on the number of threads.
TEST(Bfloat16Images, ThreadsDoNotChangeNormalizations) {
  for (const char* text : {kResidual, kPools}) {
    const Model model = training_model(text, Mode::kTrain, {"w*"});
    expect_same_bits(train(model, {}, 2), train(model, {}, 1), "a second thread");
  }
}

TEST(Bfloat16Images, NothingOfFloat32IsLeftBetweenConvolutions) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 convolutions: theirs are float32";
  const Model model = training_model(kResidual);
  Trained run = train(model, {});
  EXPECT_EQ(run.operators["BatchNormalizationTrain of bfloat16 + relu round_to=bfloat16"] +
                run.operators["BatchNormalizationTrain of bfloat16 + residual + relu round_to=bfloat16"],
            5);
  EXPECT_EQ(run.operators["BatchNormalizationTrain of bfloat16"], 1);
  EXPECT_EQ(run.operators["BatchNormalizationGrad of bfloat16 + relu"], 5);
  EXPECT_EQ(run.operators["BatchNormalizationGrad of bfloat16"], 1);
  EXPECT_EQ(run.float_images, 0);
  EXPECT_GT(train(model, {"round_once", "fuse_batch_normalization", "narrow_storage"}).float_images, 0);
}

TEST(Bfloat16Images, PoolsReadAndWriteThem) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 convolutions: theirs are float32";
  const Model model = training_model(kPools);
  Trained trained = train(model, {}), first = train(model, {"channels_last"});
  for (const std::string op : {"MaxPool", "MaxPoolGrad", "AveragePool", "AveragePoolGrad"}) {
    EXPECT_EQ(trained.operators[op + " of bfloat16 channels_last"], 2) << op;
    EXPECT_EQ(first.operators[op + " of bfloat16"], 2) << op;
  }
  EXPECT_EQ(train(training_model(kResidual), {"channels_last"}).operators["GlobalAveragePool of bfloat16"], 1);
  EXPECT_EQ(train(training_model(kNormalizedFirst), {"channels_last"}).operators["GlobalMaxPool of bfloat16"], 1);
}

}  // namespace
}  // namespace onnx_train::bfloat16_images_test
