#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "kernels/cpu/support/cpu_features.h"
#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/windows.h"
#include "runtime/session/session.h"
#include "tests/support/run_node.h"

namespace onnx_train::channels_last_test {
namespace {

int count(const Model& model, const std::string& op) {
  int n = 0;
  for (const Node* node = model.graph->first(); node; node = node->next()) n += node->op() == op;
  return n;
}

// The same for batch normalizations with this epilogue.
int count_with(const Model& model, const std::string& op, const std::string& epilogue) {
  int n = 0;
  for (const Node* node = model.graph->first(); node; node = node->next())
    n += node->op() == op && node->attr("epilogue", "") == epilogue;
  return n;
}

// The same for nodes with channels-last images.
int count_channels_last(const Model& model, const std::string& op) {
  int n = 0;
  for (const Node* node = model.graph->first(); node; node = node->next())
    n += node->op() == op && is_channels_last(*node);
  return n;
}

Model lowered(const std::string& text) {
  Model model = from_text(text);
  infer_types(model.graph.get());
  channels_last(model);
  remove_dead_nodes(model);
  return model;
}

// Runs the model with and without the pass on random inputs.
void expect_same_numbers(const Model& model, double tolerance = 1e-6, const char* pass = "channels_last") {
  TensorMap inputs;
  unsigned seed = 1;
  for (const Value* input : model.graph->inputs()) {
    inputs[input->name()] = random_tensor(input->dtype(), input->type().shape(), seed++);
  }
  SessionOptions without;
  without.plan.lowering.without = {pass};
  Session with(clone(model)), plain(clone(model), without);
  const TensorMap& results = with.run("predict", inputs);
  for (const auto& [name, expected] : plain.run("predict", inputs)) {
    EXPECT_LT(relative_error(results.at(name), expected), tolerance) << name;
  }
}

// The model with the gradients of its first output with respect to all of its inputs as outputs.
Model with_gradients(Model model) {
  Graph& graph = *model.graph;
  infer_types(&graph);
  Value* y = graph.outputs()[0];
  const std::vector<Value*> wrt = graph.inputs();
  Value* dy = graph.add_input("dy", y->type());
  const std::vector<Value*> gradients = add_gradients(&graph, {y}, {dy}, wrt);
  for (Value* gradient : gradients) {
    if (gradient) graph.add_output(gradient);
  }
  return model;
}

TEST(ChannelsLast, LeavesALoneConvolutionAlone) {
  EXPECT_EQ(count_channels_last(lowered(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,4,5,5] x, float[4,4,3,3] w) => (float[2,4,3,3] y) { y = Conv (x, w) })"),
                                "Conv"),
            0);
}

TEST(ChannelsLast, LeavesDoublesAlone) {
  EXPECT_EQ(count_channels_last(lowered(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (double[2,4,7,7] x, double[4,4,3,3] w) => (double[2,4,3,3] y) { h = Conv (x, w)  y = Conv (h, w) })"),
                                "Conv"),
            0);
}

TEST(ChannelsLast, MergesWithTransposesAtTheBorder) {
  const Model model = lowered(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,7,7,4] x, float[4,4,3,3] w) => (float[2,3,3,4] y) {
      first = Transpose <perm = [0, 3, 1, 2]> (x)
      h = Conv (first, w)
      z = Conv (h, w)
      y = Transpose <perm = [0, 2, 3, 1]> (z)
    })");
  EXPECT_EQ(count_channels_last(model, "Conv"), 2);
  EXPECT_EQ(count(model, "Transpose"), 0);
}

TEST(ChannelsLast, OneChannelIsAView) {
  const Model model = lowered(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,1,7,7] x, float[4,1,3,3] w, float[8,4,5,5] v) => (float[2,8,1,1] y) {
      h = Conv (x, w)
      y = Conv (h, v)
    })");
  EXPECT_EQ(count_channels_last(model, "Conv"), 2);
  EXPECT_EQ(count(model, "Transpose"), 0);
}

// The border moves to where it costs least: an element-wise tail on many channels is not worth transposing behind.
TEST(ChannelsLast, NodesThatOnlyMoveTheBorderStayOutside) {
  const Model model = lowered(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,4,9,9] x, float[4,4,3,3] w, float[2,4,5,5] a, float[2,4,5,5] b) => (float[2,4,5,5] y) {
      h = Conv (x, w)
      z = Conv (h, w)
      t = Add (a, b)
      u = Mul (t, b)
      y = Add (z, u)
    })");
  EXPECT_EQ(count_channels_last(model, "Conv"), 2);
  EXPECT_EQ(count(model, "Transpose"), 2);
}

constexpr const char* kEverything = R"(<ir_version: 10, opset_import: ["" : 21]>
  g (float[2,3,9,9] x, float[8,3,3,3] w0, float[8] b0, float[8,1,3,3] depthwise, float[4,4,3,3] grouped,
     float[8,6,2,2] up, float[6,1,1] slope, float[9] row) => (float[2,6] y)
  <int64[2] sizes = {2,3}, int64[4] pads = {0,1,1,0}, int64[2] pad_axes = {2,3}, int64[2] two = {4,4},
   int64[1] from = {1}, int64[1] to = {8}, int64[1] height = {2}>
  {
    h = Conv <auto_pad = "SAME_UPPER"> (x, w0, b0)
    t = Tanh (h)
    positioned = Add (t, row)
    d = Conv <group = 8, pads = [1, 1, 1, 1], dilations = [1, 1], strides = [2, 2]> (positioned, depthwise)
    m = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2], count_include_pad = 1> (positioned)
    s = Mul (d, m)
    a, b = Split <axis = 1> (s, two)
    g = Conv <pads = [1, 1, 1, 1]> (a, grouped)
    c = Concat <axis = -3> (b, g)
    p = Pad (c, pads, , pad_axes)
    q = MaxPool <kernel_shape = [2, 2], ceil_mode = 1, strides = [2, 2]> (p)
    u = ConvTranspose <strides = [2, 2], output_padding = [1, 1]> (q, up)
    l = PRelu (u, slope)
    z = Slice (l, from, to, height)
    means = ReduceMean (z, sizes)
    scaled = Mul (z, means)
    y = ReduceMean <keepdims = 0> (scaled, sizes)
  })";

TEST(ChannelsLast, ChangesNoNumbers) {
  const Model model = lowered(kEverything);
  EXPECT_EQ(count(model, "Transpose"), 1) << to_text(model);  // of the image; the results are views
  Model inputs = from_text(kEverything);
  infer_types(inputs.graph.get());
  expect_same_numbers(inputs);
}

TEST(ChannelsLast, ChangesNoGradients) { expect_same_numbers(with_gradients(from_text(kEverything)), 2e-6); }

TEST(ChannelsLast, TakesOneAndThreeSizes) {
  expect_same_numbers(with_gradients(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,3,19] x, float[4,3,3] w, float[4,4,2] v, float[4] scale, float[4] bias, float[4] mean, float[4] spread)
      => (float[1,4,1] y) {
      h = Conv <dilations = [2]> (x, w)
      variance = Mul (spread, spread)
      n = BatchNormalization (h, scale, bias, mean, variance)
      z = Conv <strides = [3], pads = [1, 0]> (n, v)
      p = MaxPool <kernel_shape = [2]> (z)
      y = GlobalAveragePool (p)
    })")));
  expect_same_numbers(with_gradients(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,1,5,6,4] x, float[4,1,3,2,3] w, float[3,4,2,2,2] v) => (float[2,3,1,1,1] y) {
      h = Conv <pads = [1, 0, 1, 1, 1, 0]> (x, w)
      z = Conv (h, v)
      p = AveragePool <kernel_shape = [2, 2, 1]> (z)
      y = GlobalMaxPool (p)
    })")));
}

constexpr const char* kResidual = R"(<ir_version: 10, opset_import: ["" : 21, "onnx_train" : 1]>
  g (float[2,4,6,5] x, float[4,4,3,3] w, float[4,4,1,1] v, float[4] s, float[4] b) => (float[2,4,6,5] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    n, n_mean, n_var = onnx_train.BatchNormalizationTrain (a, s, b)
    r = Relu (n)
    c = Conv <pads = [1, 1, 1, 1]> (r, w)
    m, m_mean, m_var = onnx_train.BatchNormalizationTrain (c, s, b)
    p = Conv (x, v)
    q, q_mean, q_var = onnx_train.BatchNormalizationTrain (p, s, b)
    t = Add (m, q)
    u = Relu (t)
    d = Conv <pads = [1, 1, 1, 1]> (u, w)
    k, k_mean, k_var = onnx_train.BatchNormalizationTrain (d, s, b)
    l = Add (u, k)
    y = Relu (l)
  })";

// The model above, its functions and gradients added.
Model residual_network() {
  Model model = from_text(kResidual);
  for (Node* node : model.graph->nodes()) {
    if (node->domain() != kDomain) continue;
    Builder b(model.graph.get(), node);
    std::vector<Var> inputs;
    for (Value* input : node->inputs()) inputs.push_back(b.var(input));
    const auto outputs = call(b, node->op(), 3, inputs);
    for (int i = 0; i < 3; ++i) model.graph->replace(node->output(i), outputs[static_cast<size_t>(i)].value());
    model.graph->remove(node);
  }
  return with_gradients(std::move(model));
}

TEST(FuseBatchNormalization, TakesOverReluAndResidual) {
  Model model = residual_network();
  ASSERT_TRUE(fuse_batch_normalization(model, Device::cpu()));
  EXPECT_EQ(count_with(model, "BatchNormalizationTrain", "relu"), 1);
  EXPECT_EQ(count_with(model, "BatchNormalizationTrain", "residual, relu"), 2);
  EXPECT_EQ(count(model, "BatchNormalizationTrain"), 4);  // one before an Add that is fused with another one
  EXPECT_EQ(count(model, "Relu"), 0);
  EXPECT_EQ(count_with(model, "BatchNormalizationGrad", "relu"), 3);
  EXPECT_EQ(count(model, "BatchNormalizationGrad"), 4);
  EXPECT_EQ(count(model, "ReluGrad"), 0);
  EXPECT_FALSE(fuse_batch_normalization(model, Device::cpu()));
}

TEST(FuseBatchNormalization, ChangesNoNumbers) {
  for (const char* pass : {"fuse_batch_normalization", "channels_last"}) {
    expect_same_numbers(residual_network(), 2e-6, pass);
  }
}

TEST(FuseBatchNormalization, TakesOverReluBehindRunningStatistics) {
  Model network = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,4,6,5] x, float[4,4,3,3] w, float[4] s, float[4] b, float[4] mean, float[4] spread)
      => (float[2,4,6,5] y) {
      var = Mul (spread, spread)
      a = Conv <pads = [1, 1, 1, 1]> (x, w)
      n = BatchNormalization (a, s, b, mean, var)
      r = Relu (n)
      c = Conv <pads = [1, 1, 1, 1]> (r, w)
      m = BatchNormalization <epsilon = 0.01> (c, s, b, mean, var)
      t = Add (r, m)
      y = Relu (t)
    })");
  infer_types(network.graph.get());
  Model model = clone(network);
  ASSERT_TRUE(fuse_batch_normalization(model, Device::cpu()));
  EXPECT_EQ(count_with(model, "BatchNormalization", "relu"), 1);
  EXPECT_EQ(count_with(model, "BatchNormalization", "residual, relu"), 1);
  EXPECT_EQ(count(model, "BatchNormalization"), 2);
  EXPECT_EQ(count(model, "Relu"), 0);
  for (const char* pass : {"fuse_batch_normalization", "channels_last"}) expect_same_numbers(network, 2e-6, pass);
}

// The convolution, or a gradient of it, gives the same bits on one thread and on three.
void expect_threads_change_nothing(const char* op, const std::vector<Tensor>& inputs, int num_outputs) {
  const Attrs same = {
      {"strides", Shape{1, 1}}, {"dilations", Shape{1, 1}}, {"pads", Shape{1, 1, 1, 1}}, {"channels_last", 1}};
  const auto with_threads = [&](int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    const auto outputs = run_node(op, inputs, same, num_outputs, kDomain);
    set_num_threads(before);
    return outputs;
  };
  const auto one = with_threads(1), three = with_threads(3);
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_EQ(one[i].bytes(), three[i].bytes());
    EXPECT_EQ(std::memcmp(one[i].data(), three[i].data(), one[i].bytes()), 0) << op << ", output " << i;
  }
}

// The sums of our own convolutions belong to one thread each, whatever their number.
TEST(ChannelsLast, ThreadsDoNotChangeABitOfConvolutions) {
  if (cpu::isa() < cpu::Isa::kAvx2) GTEST_SKIP() << "OpenBLAS's products depend on the number of threads";
  const auto random = [](Shape shape, unsigned seed) { return random_tensor(DType::kFloat, std::move(shape), seed); };
  expect_threads_change_nothing(
      "ConvGradWeight", {random({3, 20, 20, 24}, 1), random({3, 20, 20, 64}, 2), Tensor::ints({64, 24, 3, 3})}, 2);
  const Tensor small = random({16, 4, 4, 32}, 3), w = random({32, 32, 3, 3}, 4);
  expect_threads_change_nothing("Conv", {small, w, random({32}, 5)}, 1);
  expect_threads_change_nothing("ConvGradInput", {small, w, Tensor::ints({16, 4, 4, 32})}, 1);
}

TEST(ChannelsLast, ThreadsDoNotChangeABitOfBfloat16Convolutions) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 convolutions: theirs are float32";
  if (cpu::isa() == cpu::Isa::kAmx) GTEST_SKIP() << "AMX: they are oneDNN's; ONNX_TRAIN_ISA=avx512_bf16 runs ours";
  const auto narrow = [](Shape shape, unsigned seed) {
    return random_tensor(DType::kFloat, std::move(shape), seed).cast(DType::kBFloat16);
  };
  for (const int64_t batch : {3, 9}) {  // one chunk of images, and more
    expect_threads_change_nothing(
        "ConvGradWeight",
        {narrow({batch, 20, 20, 24}, 1), narrow({batch, 20, 20, 64}, 2), Tensor::ints({64, 24, 3, 3})}, 2);
  }
  const Tensor small = narrow({16, 4, 4, 32}, 3), w = narrow({32, 32, 3, 3}, 4);
  expect_threads_change_nothing("Conv", {small, w, random_tensor(DType::kFloat, {32}, 5)}, 1);
  expect_threads_change_nothing("ConvGradInput", {small, w, Tensor::ints({16, 4, 4, 32})}, 1);
}

// Small images whose patches are taken in two parts, windows of one element, and strided ones
// (kernels/cpu/convolution/wgrad_im2col.cc).
TEST(ChannelsLast, Bfloat16WeightGradientsOfSmallImages) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 convolutions: theirs are float32";
  struct Case {
    Shape x, dy, w;
    int64_t stride, pad;
  };
  for (const Case& c :
       {Case{{40, 7, 7, 512}, {40, 7, 7, 6}, {6, 512, 3, 3}, 1, 1},
        Case{{3, 11, 9, 40}, {3, 11, 9, 70}, {70, 40, 1, 1}, 1, 0},
        Case{{2, 9, 7, 6}, {2, 5, 4, 5}, {5, 6, 3, 3}, 2, 1}, Case{{2, 5, 5, 6}, {2, 3, 3, 5}, {5, 6, 1, 1}, 2, 0}}) {
    const Attrs attrs = {{"strides", Shape{c.stride, c.stride}},
                         {"dilations", Shape{1, 1}},
                         {"pads", Shape{c.pad, c.pad, c.pad, c.pad}},
                         {"channels_last", 1}};
    const Tensor x = random_tensor(DType::kFloat, c.x, 1).cast(DType::kBFloat16);
    const Tensor dy = random_tensor(DType::kFloat, c.dy, 2).cast(DType::kBFloat16);
    const auto found = run_node("ConvGradWeight", {x, dy, Tensor::ints(c.w)}, attrs, 2, kDomain);
    const auto wide = [](const Tensor& narrow) { return narrow.cast(DType::kFloat); };
    const auto expected = run_node("ConvGradWeight", {wide(x), wide(dy), Tensor::ints(c.w)}, attrs, 2, kDomain);
    for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative_error(found[i], expected[i]), 2e-6) << to_string(c.w) << i;
  }
}

TEST(ChannelsLast, KeepsGroupNormalizationsInside) {
  const Model network = with_gradients(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,3,9,8] x, float[8,3,3,3] w, float[8] s, float[8] b, float[8,8,3,3] v) => (float[2,8,3,2] y) {
      h = Conv (x, w)
      n = GroupNormalization <num_groups = 4> (h, s, b)
      t = Tanh (n)
      c = Conv (t, v)
      i = InstanceNormalization (c, s, b)
      y = Conv (i, v)
    })"));
  Model model = clone(network);
  channels_last(model);
  remove_dead_nodes(model);
  EXPECT_EQ(count_channels_last(model, "GroupNormalization"), 2);
  EXPECT_EQ(count_channels_last(model, "GroupNormalizationGrad"), 2);
  EXPECT_EQ(count(model, "Transpose"), 4) << to_text(model);  // of x, y, and their gradients
  expect_same_numbers(network, 5e-6);
}

TEST(ChannelsLast, ThreadsDoNotChangeABitOfGroupNormalizations) {
  for (const Shape& shape : {Shape{1, 150, 150, 12}, Shape{2, 90, 100, 48}, Shape{7, 3, 5, 6}}) {
    const Tensor x = random_tensor(DType::kFloat, shape, 1), dy = random_tensor(DType::kFloat, shape, 2);
    const Tensor scale = random_tensor(DType::kFloat, {shape.back()}, 3);
    const auto with_threads = [&](int threads, const char* op, const std::vector<Tensor>& inputs, int outputs) {
      const int before = num_threads();
      set_num_threads(threads);
      const auto results = run_node(op, inputs, {{"num_groups", 3}, {"channels_last", 1}}, outputs, kDomain);
      set_num_threads(before);
      return results;
    };
    const auto expect_same = [&](const char* op, const std::vector<Tensor>& inputs, int outputs) {
      const auto one = with_threads(1, op, inputs, outputs), three = with_threads(3, op, inputs, outputs);
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(std::memcmp(one[i].data(), three[i].data(), one[i].bytes()), 0) << op << ", output " << i;
      }
    };
    expect_same("GroupNormalization", {x, scale, scale}, 1);
    expect_same("GroupNormalizationGrad", {x, scale, dy}, 3);
  }
}

}  // namespace
}  // namespace onnx_train::channels_last_test
