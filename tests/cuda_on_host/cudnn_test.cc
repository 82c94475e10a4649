// Plans that the real cuDNN makes for an H200, and behaviour when it refuses or fails. The operator cases
// (tests/CMakeLists.txt) compare results with the CPU's.
#include <gtest/gtest.h>

#include <future>

#include "kernels/cuda/support/device.h"
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/epilogue.h"
#include "onnx_passes/operators/windows.h"
#include "runtime/session/session.h"
#include "tests/cuda_on_host/failing_call.h"
#include "tests/cuda_on_host/runtime.h"
#include "tests/support/cudnn_limits.h"
#include "tests/support/device_network.h"
#include "tests/support/run_node.h"

namespace onnx_train::cudnn_test {
namespace {

using Ints = std::vector<int64_t>;

struct Layer {
  Shape x, w, y;
  int64_t group = 1;
  Ints strides = {1, 1}, pads = {1, 1, 1, 1}, dilations = {1, 1};
};

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = {
      {{256, 3, 224, 224}, {64, 3, 7, 7}, {256, 64, 112, 112}, 1, {2, 2}, {3, 3, 3, 3}},
      {{256, 64, 56, 56}, {64, 64, 3, 3}, {256, 64, 56, 56}},
      {{256, 64, 56, 56}, {256, 64, 1, 1}, {256, 256, 56, 56}, 1, {1, 1}, {0, 0, 0, 0}},
      {{256, 256, 56, 56}, {512, 256, 1, 1}, {256, 512, 28, 28}, 1, {2, 2}, {0, 0, 0, 0}},
      {{256, 128, 56, 56}, {128, 128, 3, 3}, {256, 128, 28, 28}, 1, {2, 2}},
      {{256, 512, 7, 7}, {512, 512, 3, 3}, {256, 512, 7, 7}},
      {{32, 128, 56, 56}, {128, 4, 3, 3}, {32, 128, 56, 56}, 32},
      {{32, 128, 56, 56}, {128, 1, 3, 3}, {32, 128, 56, 56}, 128},
      {{32, 64, 28, 28}, {64, 64, 3, 3}, {32, 64, 28, 28}, 1, {1, 1}, {2, 2, 2, 2}, {2, 2}},
      {{32, 64, 29, 30}, {64, 64, 3, 2}, {32, 64, 15, 10}, 1, {2, 3}, {1, 0, 1, 1}},  // asymmetric padding
      {{32, 64, 100}, {64, 64, 3}, {32, 64, 100}, 1, {1}, {1, 1}, {1}},
      {{8, 16, 16, 16, 16}, {32, 16, 3, 3, 3}, {8, 32, 16, 16, 16}, 1, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, {1, 1, 1}},
  };
  return all;
}

bool has_cudnn() { return cuda_device().description().find(", cuDNN 9.") != std::string::npos; }

constexpr const char* kNoLibrary = "cuDNN is not installed: scripts/bootstrap --cuda";

// A node planned for a device without allocating anything.
class Planned {
 public:
  Planned(const char* op, const Layer& layer, DType in, DType out, bool bias = false)
      : model_(from_text("<ir_version: 10, opset_import: [\"\" : 21, \"onnx_train\" : 1]> g () => () {}")) {
    Builder b(model_.graph.get());
    const std::string name = op;
    const bool is_forward = name == "Conv", of_input = name == "ConvGradInput";
    const auto input = [&](const char* of, const Shape& shape, DType dtype) {
      return b.var(model_.graph->add_input(of, {dtype, Dims(shape.begin(), shape.end())}));
    };
    std::vector<Var> inputs = {input("a", of_input ? layer.y : layer.x, in),
                               input("b", is_forward || of_input ? layer.w : layer.y, in)};
    if (bias) inputs.push_back(input("bias", {layer.w[0]}, DType::kFloat));
    if (!is_forward) inputs.push_back(b.ints(of_input ? layer.x : layer.w));
    const Attrs attrs = {
        {"group", layer.group}, {"strides", layer.strides}, {"pads", layer.pads}, {"dilations", layer.dilations}};
    const bool is_ours = !is_forward || in != DType::kFloat;
    const Var y = is_ours ? call_lowered(b, op, 1, inputs, attrs)[0] : b.op(op, inputs, attrs);
    const Shape& shape = is_forward ? layer.y : of_input ? layer.x : layer.w;
    y.value()->set_type({out, Dims(shape.begin(), shape.end())});
    node_ = y.value()->producer();
    kernel_ = find_kernel(cuda_device(), *node_);
  }
  bool is_by_cudnn() const { return kernel_ && std::string(kernel_->name).starts_with("cuDNN"); }
  size_t workspace() const {
    return prepare(*kernel_, NodeSpec(*node_, std::vector<Tensor>(node_->inputs().size()), 1)).workspace;
  }

 private:
  Model model_;
  const Node* node_;
  const Kernel* kernel_;
};

std::string text_of(const char* op, const Layer& layer, DType in, DType out) {
  return concat(op, " ", to_string(layer.x), " ", to_string(layer.w), " ", name(in), " to ", name(out));
}

TEST(CudaCudnn, HasPlansForTheConvolutionsOfResidualNetworks) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  constexpr size_t kMost = size_t{2} << 30;
  for (const Layer& layer : layers()) {
    for (const DType dtype : {DType::kFloat, DType::kBFloat16, DType::kFloat16}) {
      for (const char* op : {"Conv", "ConvGradInput", "ConvGradWeight"}) {
        const Planned planned(op, layer, dtype, dtype);
        ASSERT_TRUE(planned.is_by_cudnn()) << text_of(op, layer, dtype, dtype);
        EXPECT_LE(planned.workspace(), kMost) << text_of(op, layer, dtype, dtype);
      }
    }
  }
}

// Products [tokens, in] x [out, in] of linear layers with their activations, and the gradient of the next layer's
// input: of BERT, of GPT-2, and one whose rows are no multiples of 16 bytes.
TEST(CudaCudnn, HasPlansForProductsWithActivations) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  struct Size {
    int64_t tokens, in, out;
    const char* kernel;
  };
  constexpr const char* kCudnn = "product with activation";
  for (const Size size : {Size{8192, 768, 3072, kCudnn}, Size{4096, 1600, 6400, kCudnn}, Size{64, 32, 68, ""}}) {
    for (const char* epilogue : {"gelu_tanh", "gelu_tanh_gradient"}) {
      Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21, \"onnx_train\" : 1]> g () => () {}");
      const auto input = [&](const char* name, int64_t rows, int64_t columns) {
        return model.graph->add_input(name, {DType::kBFloat16, Dims{rows, columns}});
      };
      Node* node = model.graph->add_node("Gemm", {input("x", size.tokens, size.in), input("w", size.out, size.in)},
                                         {"y"}, kDomain);
      node->set_attr("transB", 1);
      node->set_attr(kEpilogue, epilogue);
      if (epilogue == std::string("gelu_tanh")) {
        node->set_input(2, model.graph->add_input("bias", {DType::kBFloat16, Dims{size.out}}));
      } else {
        node->set_input(3, input("at", size.tokens, size.out));
      }
      node->output()->set_type({DType::kBFloat16, Dims{size.tokens, size.out}});
      const Kernel* kernel = find_kernel(cuda_device(), *node);
      EXPECT_EQ(std::string(kernel ? kernel->name : ""), size.kernel) << epilogue << size.out;
    }
  }
}

// The library has no plan for 16-bit operands with a 32-bit result or with a bias.
TEST(CudaCudnn, WidensOperandsForWhatHasNoPlan) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Layer& layer = layers()[5];
  const auto operand_bytes = sizeof(float) * static_cast<size_t>(num_elements(layer.x) + num_elements(layer.y));
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Planned planned("ConvGradWeight", layer, dtype, DType::kFloat);
    ASSERT_TRUE(planned.is_by_cudnn());
    EXPECT_GE(planned.workspace(), operand_bytes);
    EXPECT_TRUE(Planned("Conv", layer, dtype, dtype, true).is_by_cudnn());
    EXPECT_TRUE(Planned("ConvGradInput", layer, dtype, DType::kFloat).is_by_cudnn());
  }
}

// Returns two convolutions with a pool in between; `rounds`: images and filters are rounded to 16 bits.
std::string two_convolutions(bool rounds) {
  const char* const end = rounds ? "_r" : "";
  const auto rounded = [&](const std::string& name) {
    return rounds ? concat(name, "_16 = Cast <to = 16> (", name, ")  ", name, "_r = Cast <to = 1> (", name, "_16)  ")
                  : std::string();
  };
  return concat(R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[8, 16, 20, 20] x, float[32, 16, 3, 3] v, float[24, 32, 3, 3] w) => (float[8, 24, 7, 7] y) {)",
                rounded("x"), rounded("v"), rounded("w"), "a = Conv (x", end, ", v", end, ")  b = Relu (a)  ",
                "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 1]> (b)  ", rounded("p"),
                "y = Conv <pads = [0, 0, 0, 0]> (p", end, ", w", end, ") }");
}

TEST(CudaCudnn, ImagesLieChannelsLastForTensorCores) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Shape x = {8, 16, 20, 20}, v = {32, 16, 3, 3}, w = {24, 32, 3, 3};
  const TensorMap inputs = {{"x", random_tensor(DType::kFloat, x, 1)},
                            {"v", random_tensor(DType::kFloat, v, 2)},
                            {"w", random_tensor(DType::kFloat, w, 3)}};
  struct Case {
    bool rounds, tf32;
  };
  for (const auto& [rounds, tf32] : {Case{false, false}, Case{true, false}, Case{false, true}}) {
    SCOPED_TRACE(rounds ? "16 bits" : tf32 ? "TF32" : "float32");
    const Model model = from_text(two_convolutions(rounds));
    SessionOptions options = on(&cuda_device());
    options.plan.arithmetic.tf32 = tf32;
    Session cpu(clone(model)), cuda(clone(model), options);
    int transposes = 0, channels_last = 0;
    for (const PlanStep& step : cuda.plan("predict", shapes_of(inputs)).steps()) {
      transposes += step.node->is("Transpose");
      channels_last += is_channels_last(*step.node);
    }
    EXPECT_EQ(channels_last, rounds || tf32 ? 3 : 0);
    EXPECT_EQ(transposes, rounds || tf32 ? 2 : 0);  // of x and of y
    // A sum near the middle of two 16-bit numbers may be rounded to either: 2^-8 of one of the 288 terms of y.
    const double bound = rounds ? 0x1p-12 : 1e-5;
    EXPECT_LT(relative_error(cuda.run("predict", inputs).at("y"), cpu.run("predict", inputs).at("y")), bound);
  }
}

TEST(CudaCudnn, OurKernelsRunWhatItRefuses) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Layer layer = {{2, 4, 6, 9}, {3, 4, 3, 3}, {2, 3, 4, 4}, 1, {1, 2}, {0, 0, 0, 0}};
  Layer empty = layer;
  empty.x[0] = empty.y[0] = 0;
  EXPECT_TRUE(Planned("Conv", layer, DType::kFloat, DType::kFloat).is_by_cudnn());
  EXPECT_FALSE(Planned("Conv", empty, DType::kFloat, DType::kFloat).is_by_cudnn());
  EXPECT_FALSE(Planned("Conv", layer, DType::kDouble, DType::kDouble).is_by_cudnn());
}

Model convolution_of(int64_t size) {
  const int64_t result = size - 2;
  return from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[2, 3, 8, )",
                          size, "] x, float[4, 3, 3, 3] w) => (float[2, 4, 6, ", result, "] y) { y = Conv(x, w) }"));
}

TensorMap ones(int64_t size) {
  return {{"x", Tensor::full(DType::kFloat, {2, 3, 8, size}, 1)}, {"w", Tensor::full(DType::kFloat, {4, 3, 3, 3}, 1)}};
}

TEST(CudaCudnn, APlanKeepsItsGraphWhenOthersHaveTakenItsPlace) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const OtherCudnnLimits one_graph({.graphs = 1});
  Session first(convolution_of(8), on(&cuda_device())), second(convolution_of(9), on(&cuda_device()));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(first.run("predict", ones(8)).at("y").at(0), 27);
    EXPECT_EQ(second.run("predict", ones(9)).at("y").at(0), 27);
  }
}

TEST(CudaCudnn, EachDeviceHasItsOwnHandles) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  Session first(convolution_of(8), on(&cuda_device())), second(convolution_of(8), on(&cuda_device(1)));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(first.run("predict", ones(8)).at("y").at(0), 27);
    EXPECT_EQ(second.run("predict", ones(8)).at("y").at(0), 27);
  }
}

TEST(CudaCudnn, SessionsInThreadsShareAGraph) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const auto run = [] {
    Session session(convolution_of(10), on(&cuda_device()));
    double sum = 0;
    for (int i = 0; i < 5; ++i) sum += session.run("predict", ones(10)).at("y").at(0);
    return sum;
  };
  std::vector<std::future<double>> threads;
  for (int i = 0; i < 4; ++i) threads.push_back(std::async(std::launch::async, run));
  for (auto& thread : threads) EXPECT_EQ(thread.get(), 5 * 27);
}

TEST(CudaCudnn, ACallThatFailsIsOneLineThatNamesTheNode) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Model model = convolution_of(8);
  const TensorMap inputs = ones(8);
  int of_cudnn = 0;
  for (int64_t n = 0;; ++n) {
    Session session(clone(model), on(&cuda_device()));
    const auto [reached, error] =
        run_with_failing_call(n, [&] { EXPECT_EQ(session.run("predict", inputs).at("y").at(0), 27); });
    if (error) {
      const std::string message = error->what();
      EXPECT_EQ(error->kind(), ErrorCode::kDevice) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      if (message.find("cuDNN: ") == std::string::npos) continue;
      ++of_cudnn;
      EXPECT_NE(message.find("Conv"), std::string::npos) << message;
      EXPECT_NE(message.find("'y'"), std::string::npos) << message;
    }
    if (!reached) break;
  }
  EXPECT_GE(of_cudnn, 1);
}

}  // namespace
}  // namespace onnx_train::cudnn_test
