// Generated CUDA kernels compile for GPUs; those of regions give the same results as those of their nodes.
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <set>

#include "kernels/cuda/fused/compiler.h"
#include "kernels/cuda/fused/formulas.h"
#include "kernels/cuda/fused/nvrtc.h"
#include "kernels/cuda/fused/source.h"
#include "kernels/cuda/support/device.h"
#include "kernels/cuda/support/runtime.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/elementwise_graphs.h"
#include "tests/support/run_node.h"
#include "tests/support/transformer.h"

namespace onnx_train::generated_test {
namespace {

Session on_cuda(const Model& model, bool fuses = true) {
  SessionOptions options;
  options.device = &cuda_device();
  if (!fuses) options.plan.lowering.without = {"fuse_elementwise"};
  return Session(clone(model), options);
}

// The texts of the generated kernels of a plan's graph: of its regions and of its single nodes.
struct Texts {
  std::set<std::string> regions, nodes;
};

Texts texts_of(const Model& lowered) {
  Texts texts;
  for (const Node* node = lowered.graph->first(); node; node = node->next()) {
    std::vector<Tensor> constants;
    for (const Value* input : node->inputs()) constants.push_back(input ? constant_of(input) : Tensor());
    const NodeSpec spec(*node, std::move(constants), 1);
    if (node->is("Fused", kDomain)) {
      texts.regions.insert(cuda::fused_source(spec, *read_body(spec, cuda::can_fuse)).text);
    } else if (cuda::has_formula(*node)) {
      texts.nodes.insert(cuda::fused_source(spec, body_of_node(spec)).text);
    }
  }
  return texts;
}

Texts texts_of(Session& session, const TensorMap& inputs) {
  return texts_of(session.plan("predict", shapes_of(inputs)).model());
}

// Returns a region of all element-wise operators of the type; each is applied to a value that the region computes.
Model all_operators(DType dtype) {
  Model model;
  model.context->opsets[""] = 24;
  Builder b(model.graph.get());
  const Var x0 = b.var(model.graph->add_input("x0", {dtype, Dims{3, 700}}));
  const Var x = b.op(dtype == DType::kBool ? "Not" : "Neg", {x0});
  for (const cpu::ElementwiseRow& row : cpu::elementwise_rows()) {
    if (row.op == std::string("CastLike") || row.op == std::string("Cast")) continue;
    Model trial;
    trial.context->opsets[""] = 24;
    Builder in_trial(trial.graph.get());
    const Var of_trial = in_trial.var(trial.graph->add_input("x", {dtype, Dims{3, 700}}));
    const Var y = apply(in_trial, row, of_trial, [&](DType type, Dims dims) {
      return in_trial.var(trial.graph->add_input(trial.graph->unique_name("x"), {type, std::move(dims)}));
    });
    if (!cuda::has_formula(*y.value()->producer())) continue;
    const Var result = apply(b, row, x, [&](DType type, Dims dims) {
      return b.var(model.graph->add_input("x" + std::to_string(model.graph->inputs().size()), {type, std::move(dims)}));
    });
    model.graph->add_output(result.value());
  }
  return model;
}

class CudaGenerated : public testing::TestWithParam<DType> {};

TEST_P(CudaGenerated, OperatorsGiveTheBitsOfTheirKernels) {
  const Model model = all_operators(GetParam());
  const TensorMap inputs = draw_inputs(model);
  Session fused = on_cuda(model), plain = on_cuda(model, false);
  EXPECT_FALSE(texts_of(fused, inputs).regions.empty());
  EXPECT_TRUE(texts_of(plain, inputs).regions.empty());
  const TensorMap& got = fused.run("predict", inputs);
  for (const auto& [name, tensor] : plain.run("predict", inputs)) {
    EXPECT_TRUE(equal_but_nan(got.at(name), tensor)) << model.graph->find(name)->producer()->label();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGenerated,
                         testing::Values(DType::kFloat, DType::kDouble, DType::kInt32, DType::kInt64, DType::kBool));

// The regions have rows, several dependent reductions, reductions of other axes, broadcasts and views.
TEST(CudaGeneratedGraphs, GiveTheNumbersOfTheCpu) {
  size_t kernels = 0;
  for (unsigned seed = 0; seed < 16; ++seed) {
    RandomGraph graph(seed, seed % 2 ? DType::kFloat : DType::kDouble, /*with_closed=*/seed % 4 < 2);
    const Model model = graph.take_model();
    if (model.graph->outputs().empty()) continue;
    SessionOptions on_cpu;
    on_cpu.device = &Device::cpu();
    Session session = on_cuda(model), expected(clone(model), on_cpu);
    kernels += texts_of(session, graph.inputs()).regions.size();
    const TensorMap& got = session.run("predict", graph.inputs());
    for (const auto& [name, tensor] : expected.run("predict", graph.inputs())) {
      bool finite = is_float(tensor.dtype());
      for (int64_t i = 0; finite && i < tensor.size(); ++i) finite = std::abs(tensor.at(i)) < 1e30;
      if (!finite) continue;
      EXPECT_LT(relative_error(got.at(name), tensor), 1e-5) << "seed " << seed << ", " << name << to_text(model);
    }
  }
  EXPECT_GT(kernels, 16u);
}

// Values stored in 16 bits are widened and rounded in registers.
Model rounding_region(int64_t columns, bool rows) {
  std::string text = R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[3,N] x, bfloat16[3,N] b, float16[3,N] h) => (bfloat16[3,N] yb, float16[3,N] yh, float[3,N] yf)
      <int64[1] axis = {1}> {
      wide_b = Cast <to = 1> (b)
      wide_h = Cast <to = 1> (h)
      product = Mul (wide_b, x)
      rounded = Cast <to = 16> (product)
      again = Cast <to = 1> (rounded)
      mean = MEAN
      centered = Sub (again, mean)
      yf = Add (centered, wide_h)
      yb = Cast <to = 16> (yf)
      large = Mul (yf, yf)
      yh = Cast <to = 10> (large)
    })";
  text.replace(text.find("MEAN"), 4, rows ? "ReduceMean <keepdims = 1> (again, axis)" : "Abs (wide_h)");
  for (size_t at = 0; (at = text.find(",N]", at)) != std::string::npos;) {
    text.replace(at + 1, 1, std::to_string(columns));
  }
  Model model = from_text(text);
  infer_types(model.graph.get());
  return model;
}

TEST(CudaGeneratedGraphs, RoundToSixteenBitsAsTheirNodesDo) {
  for (const int64_t columns : {704, 700, 7}) {
    for (const bool rows : {true, false}) {
      const Model model = rounding_region(columns, rows);
      TensorMap inputs = draw_inputs(model);
      for (int64_t i = 0; i < inputs.at("x").size(); ++i) inputs.at("x").set(i, inputs.at("x").at(i) * 300);
      Session fused = on_cuda(model), plain = on_cuda(model, false);
      EXPECT_EQ(texts_of(fused, inputs).regions.size(), 1u);
      const TensorMap& got = fused.run("predict", inputs);
      for (const auto& [name, tensor] : plain.run("predict", inputs)) {
        if (rows) {
          EXPECT_LT(relative_error(got.at(name).cast(DType::kFloat), tensor.cast(DType::kFloat)), 1e-2) << name;
        } else {
          EXPECT_TRUE(equal_but_nan(got.at(name), tensor)) << name << " " << columns;
        }
      }
    }
  }
}

// y = op(x, ...) of one type.
Model one_node(const std::string& op, DType type, const std::vector<Dims>& shapes, const Attrs& attrs = {}) {
  Model model;
  model.context->opsets[""] = 24;
  Builder b(model.graph.get());
  std::vector<Var> operands;
  for (const Dims& dims : shapes)
    operands.push_back(b.var(model.graph->add_input(concat("x", operands.size()), {type, dims})));
  model.graph->add_output(b.op(op, operands, attrs).value());
  return model;
}

std::string text_of(const Model& model) {
  const Texts texts = texts_of(model);
  EXPECT_EQ(texts.nodes.size(), 1u);
  return *texts.nodes.begin();
}

TEST(CudaGeneratedNodes, OneKernelServesAllSizes) {
  const auto add = [](const Dims& a, const Dims& b) { return text_of(one_node("Add", DType::kFloat, {a, b})); };
  EXPECT_EQ(add({3, 8}, {3, 8}), add({2, 5, 400}, {2, 5, 400}));
  EXPECT_EQ(add({3, 8}, {8}), add({500, 8}, {8}));
  EXPECT_NE(add({3, 8}, {3, 8}), add({3, 7}, {3, 7}));  // no whole number of vectors
  EXPECT_NE(add({3, 8}, {8}), add({3, 12}, {12}));
  EXPECT_NE(add({3, 8}, {3, 8}).find("using Index = int32_t"), std::string::npos);
  EXPECT_NE(add({65536, 65536}, {65536, 65536}).find("using Index = int64_t"), std::string::npos);
}

// The bits of one node's result.
template <typename Bits>
std::vector<Bits> bits_of(const Model& model, const Tensor& x) {
  Session session = on_cuda(model);
  const Tensor& y = session.run("predict", {{"x0", x}}).at(model.graph->outputs()[0]->name());
  const auto* bits = static_cast<const Bits*>(y.data());
  return std::vector<Bits>(bits, bits + y.size());
}

TEST(CudaGeneratedNodes, CastsOfFloat16HaveTheBitsOfTheHardware) {
  constexpr int64_t kHalves = 65536;
  Tensor halves(DType::kFloat16, {kHalves}), floats(DType::kFloat, {12 * kHalves});
  std::vector<uint32_t> widened, given;
  std::vector<uint16_t> narrowed;
  for (int64_t i = 0; i < kHalves; ++i) {
    const auto half = static_cast<uint16_t>(i);
    static_cast<uint16_t*>(halves.data())[i] = half;
    widened.push_back(std::bit_cast<uint32_t>(__half2float(__ushort_as_half(half))));
    // Exponents of subnormal and normal numbers, and of NaN: the number itself, one above it, halfway to the next one,
    // and one above that.
    const uint32_t start = (half & 0x8000u) << 16 | (half & 0x7fffu) << 13;
    for (const uint32_t exponent : {96u, 112u, 224u}) {
      for (const uint32_t more : {0u, 1u, 0x1000u, 0x1001u}) given.push_back(start + (exponent << 23) + more);
    }
  }
  for (const uint32_t bits : given) narrowed.push_back(__half_as_ushort(__float2half(std::bit_cast<float>(bits))));
  std::memcpy(floats.data(), given.data(), floats.bytes());
  const Attrs to_float = {{"to", static_cast<int64_t>(DType::kFloat)}},
              to_half = {{"to", static_cast<int64_t>(DType::kFloat16)}};
  EXPECT_EQ(bits_of<uint32_t>(one_node("Cast", DType::kFloat16, {{kHalves}}, to_float), halves), widened);
  EXPECT_EQ(bits_of<uint16_t>(one_node("Cast", DType::kFloat, {{12 * kHalves}}, to_half), floats), narrowed);
}

TEST(CudaGeneratedNodes, AnyNumberOfOperandsIsOneKernel) {
  for (const std::string op : {"Sum", "Mean", "Max", "Min"}) {
    for (const size_t count : {1, 3, 40}) {
      std::vector<Dims> shapes(count, Dims{3, 8});
      shapes.back() = {count == 3 ? 1 : 3, 8};
      const Model model = one_node(op, DType::kFloat, shapes);
      const TensorMap inputs = draw_inputs(model);
      Session session = on_cuda(model, false);
      SessionOptions on_cpu;
      on_cpu.device = &Device::cpu();
      Session expected(clone(model), on_cpu);
      const std::string y = model.graph->outputs()[0]->name();
      EXPECT_TRUE(equal_but_nan(session.run("predict", inputs).at(y), expected.run("predict", inputs).at(y)))
          << op << " of " << count;
    }
  }
}

// How many registers NVRTC gives a kernel is not known here: a block has as few threads as all of them allow.
TEST(CudaGeneratedNodes, ALaunchForWhichRegistersMayNotSufficeIsRefused) {
  const std::string image = cuda::compile_kernel(text_of(one_node("Neg", DType::kFloat, {{3, 8}})), "sm_90");
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  cuda::check(cudaLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
              "cudaLibraryLoadData");
  cuda::check(cudaLibraryGetKernel(&kernel, library, cuda::kFusedKernel), "cudaLibraryGetKernel");
  const auto launch = [&](unsigned threads, size_t shared, const void* argument) {
    const cudaLaunchConfig_t config = {1, threads, shared, nullptr, nullptr, 0};
    std::vector<void*> arguments(8, static_cast<void*>(&argument));
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments.data());
  };
  EXPECT_EQ(launch(257, 0, nullptr), cudaErrorLaunchOutOfResources);
  EXPECT_EQ(launch(256, 16, nullptr), cudaErrorLaunchOutOfResources);
  EXPECT_EQ(launch(256, 0, image.data()), cudaErrorIllegalAddress) << "it is the host's";
  EXPECT_DEATH((launch(256, 0, nullptr), cudaLibraryUnload(library)), "a kernel is unloaded that a stream");
  cuda::check(cudaLibraryUnload(library), "cudaLibraryUnload");
}

constexpr DType kTypes[] = {DType::kFloat,  DType::kDouble,  DType::kInt8,    DType::kUint8, DType::kInt16,
                            DType::kUint16, DType::kInt32,   DType::kUint32,  DType::kInt64, DType::kUint64,
                            DType::kBool,   DType::kFloat16, DType::kBFloat16};

// One text that holds the kernels of all texts.
std::string joined_text(const std::set<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    const size_t name = text.find(" fused("), index = text.find("using Index");
    EXPECT_NE(std::max(name, index), std::string::npos);
    const std::string number = std::to_string(all.size());
    all += all.empty() ? text.substr(0, index) : "";
    all += concat("namespace of_", number, " {\n", text.substr(index, name - index), " fused_", number,
                  text.substr(name + 6), "}\n");
  }
  return all;
}

TEST(CudaGeneratedNodes, CompileForEveryType) {
  std::set<std::string> texts;
  for (const DType dtype : kTypes) {
    texts.merge(texts_of(all_operators(dtype)).nodes);
    for (const DType to : kTypes)
      texts.insert(text_of(one_node("Cast", dtype, {{3, 8}}, {{"to", static_cast<int64_t>(to)}})));
  }
  EXPECT_GT(texts.size(), 450u);
  EXPECT_GT(cuda::compile_with_nvrtc(joined_text(texts), "sm_90a").size(), 100'000u);
}

TEST(CudaGeneratedGraphs, CompileForEveryArchitecture) {
  std::set<std::string> texts;
  for (DType dtype : {DType::kFloat, DType::kInt64}) {
    const Model model = all_operators(dtype);
    Session session = on_cuda(model);
    texts.merge(texts_of(session, draw_inputs(model)).regions);
  }
  Session session = on_cuda(make_training_transformer({.blocks = 1, .width = 32, .tokens = 16}));
  texts.merge(texts_of(session.plan("step", {{"tokens", {4, 16}}, {"labels", {4, 16}}}).model()).regions);
  for (const Precision precision : {Precision::kBfloat16, Precision::kFloat16}) {
    Model model = make_transformer({.blocks = 1, .width = 32, .tokens = 16});
    BuildOptions options;
    options.precision = precision;
    build_training_model(&model, options);
    Session narrow = on_cuda(model);
    texts.merge(texts_of(narrow.plan("step", {{"tokens", {4, 16}}, {"labels", {4, 16}}}).model()).regions);
  }
  EXPECT_GE(texts.size(), 12u);
  size_t turn = 0;  // a second each
  for (const std::string& text : texts) {
    constexpr const char* kArchitectures[] = {"sm_80", "sm_90a", "sm_100"};
    EXPECT_GT(cuda::compile_with_nvrtc(text, kArchitectures[turn++ % 3]).size(), 1000u);
  }
}

TEST(CudaNvrtc, WithoutNvrtcOneLineSaysWhatToInstall) {
  try {
    cuda::open_nvrtc("libnvrtc.so.0");
    ADD_FAILURE();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), ErrorCode::kDevice);
    EXPECT_EQ(message.find("device 'cuda': libnvrtc.so.0: "), 0u) << message;
    EXPECT_NE(message.find("pip install nvidia-cuda-nvrtc"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace onnx_train::generated_test
