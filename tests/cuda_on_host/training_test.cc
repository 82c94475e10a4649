// Training in mixed precision on the CUDA backend, on the host. Numbers are rounded where the CPU rounds them, so
// losses differ only by the order of sums and by the few numbers that this order makes round the other way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/cuda/support/device.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "runtime/models/build_settings.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/paths.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::training_test {
namespace {

// Returns a network like digits_cnn, but with biases instead of normalizations.
Model make_biased_cnn() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  unsigned seed = 0;
  const auto weight = [&](const char* name, const Shape& shape, double scale) {
    Tensor tensor = random_tensor(DType::kFloat, shape, ++seed);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, scale * tensor.at(i));
    return b.var(graph.add_initializer(name, tensor));
  };
  const Attrs same = {{"pads", Shape{1, 1, 1, 1}}};
  Var x = b.var(graph.add_input("image", {DType::kFloat, Dims{16, 1, 8, 8}}));
  x = b.op("Relu", {b.op("Conv", {x, weight("w1", {16, 1, 3, 3}, 0.5), weight("b1", {16}, 0.1)}, same)});
  x = b.op("Relu", {b.op("Conv", {x, weight("w2", {32, 16, 3, 3}, 0.1), weight("b2", {32}, 0.1)}, same)});
  x = b.op("Flatten", {x});
  x = b.op("Gemm", {x, weight("w3", {32 * 64, 10}, 0.02), weight("b3", {10}, 0.1)});
  graph.add_output(x.value());
  graph.rename(x.value(), "logits");
  return model;
}

Model training_model(const std::string& network, const std::string& precision, const std::string& loss_scale = "") {
  Model model = network == "transformer" ? make_transformer({.blocks = 1, .width = 32, .tokens = kDeviceTestTokens})
                : network == "biased_cnn"
                    ? make_biased_cnn()
                    : load_forward_model(source_folder() / "models" / concat(network, ".onnx"), "float32");
  BuildOptions options;
  options.precision = parse_precision(precision);
  options.loss_scale = loss_scale;
  build_training_model(&model, options);
  return model;
}

// GPT has too many generated kernels to compile them here; the transformer covers generated kernels.
SessionOptions on_cuda(const std::string& network) {
  SessionOptions options = on(&cuda_device());
  if (network == "gpt") options.plan.lowering.without = {"fuse_elementwise"};
  return options;
}

Tensor classes(Shape shape, int64_t count, int step) {
  Tensor tensor(DType::kInt64, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>((i * 7 + step * 3) % count));
  return tensor;
}

TensorMap batch_of(const std::string& network, int step) {
  if (network == "transformer") return batch(step);
  if (network == "gpt") return {{"tokens", classes({2, 128}, 60, step)}, {"labels", classes({2, 128}, 60, step + 1)}};
  return {{"image", random_tensor(DType::kFloat, {16, 1, 8, 8}, static_cast<unsigned>(step + 1))},
          {"labels", classes({16}, 10, step)}};
}

struct Case {
  const char *network, *precision;
  double tolerance;  // relative, of a loss; the norm of all gradients has five times that
};

class CudaTraining : public testing::TestWithParam<Case> {};

bool has_cudnn() { return cuda_device().description().find(", cuDNN 9.") != std::string::npos; }

// Each step starts from the CPU's state: a number that is rounded the other way changes an update of Adam by as much as
// the learning rate, and such differences would grow with the steps, by as much as the CPU's order of sums decides.
TEST_P(CudaTraining, LossesAreThoseOfTheCpuAndEqualInBitsFromRunToRun) {
  const auto& [network, precision, tolerance] = GetParam();
  const int steps = std::string(network) == "gpt" ? 2 : 4;
  const Model model = training_model(network, precision);
  Session session(clone(model), on_cuda(network)), again(clone(model), on_cuda(network)),
      expected(clone(model), on(&Device::cpu()));
  for (int i = 0; i < steps; ++i) {
    for (const auto& [name, state] : states_of(expected)) {
      session.state().set(name, state);
      again.state().set(name, state);
    }
    const TensorMap batch = batch_of(network, i);
    const TensorMap results = session.run("step", batch), on_cpu = expected.run("step", batch);
    for (const auto& [output, factor] : {std::pair{"loss", 1.0}, {"grad_norm", 5.0}}) {
      const double result = results.at(output).at(0), wanted = on_cpu.at(output).at(0);
      EXPECT_LE(std::abs(result - wanted), factor * tolerance * std::abs(wanted))
          << "step " << i << ", " << output << ": " << result << ", " << wanted;
    }
    EXPECT_EQ(results.at("loss").at(0), again.run("step", batch).at("loss").at(0)) << "step " << i;
    expect_equal(states_of(session), states_of(again));
  }
}

// Products and attention read 16-bit operands; a step that also stores 16-bit activations needs less memory. With a
// dynamic loss scale all float32 gradients wait for the norm and make up most of a small network's peak: the step for
// comparison then has one, too, and may need as much memory.
TEST_P(CudaTraining, StoresSixteenBits) {
  const auto& [network, precision, tolerance] = GetParam();
  const std::string loss_scale = std::string(precision) == "fp16" ? "dynamic" : "";
  SessionOptions options = on_cuda(network);
  Session session(training_model(network, precision), options),
      wide(training_model(network, "float32", loss_scale), options);
  const std::map<std::string, Shape> shapes = shapes_of(batch_of(network, 0));
  int products = 0, narrow = 0, attentions = 0;
  for (const PlanStep& step : session.plan("step", shapes).steps()) {
    const bool is_attention = step.node->is("BlockAttention", kDomain) || step.node->is("BlockAttentionGrad", kDomain);
    attentions += is_attention;
    if (is_attention) {
      EXPECT_EQ(size_of(step.node->input(0)->dtype()), 2u) << step.node->label();
      EXPECT_EQ(std::string(step.kernel->name).starts_with("cuDNN"), has_cudnn()) << step.node->label();
    }
    if (operator_of(*step.node).kind != OperatorKind::kProduct) continue;
    ++products;
    narrow += size_of(step.node->input(0)->dtype()) == 2 && size_of(step.node->input(1)->dtype()) == 2;
  }
  EXPECT_EQ(attentions, network == std::string("gpt") ? 8 : 0);  // the transformer trains its mask
  EXPECT_GT(products, 5);
  EXPECT_GE(narrow, products - 1);  // the weight gradient of a convolution of one channel is small
  // fp8 keeps operands rounded to 8 bits in addition to 16-bit activations.
  if (std::string(precision) == "gemm-bf16" || std::string(precision) == "fp8") return;
  // Excludes the workspace of single nodes: convolutions that widen their operands need as much as all activations of a
  // network of two layers.
  const auto bytes = [&](Session& of) {
    const Plan& plan = of.plan("step", shapes);
    return static_cast<double>(plan.arena_bytes() - plan.workspace_bytes());
  };
  EXPECT_LE(bytes(session), (loss_scale.empty() ? 0.9 : 1) * bytes(wide));
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name = concat(info.param.network, "_", info.param.precision);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Networks, CudaTraining,
                         testing::Values(Case{"digits_cnn", "gemm-bf16", 2e-4}, Case{"digits_cnn", "bf16", 1e-3},
                                         Case{"digits_cnn", "fp16", 2e-4}, Case{"biased_cnn", "gemm-bf16", 2e-4},
                                         Case{"biased_cnn", "bf16", 1e-3}, Case{"biased_cnn", "fp16", 2e-4},
                                         Case{"transformer", "gemm-bf16", 2e-4}, Case{"transformer", "bf16", 1e-3},
                                         Case{"transformer", "fp16", 2e-4}, Case{"transformer", "fp8", 5e-3},
                                         Case{"gpt", "bf16", 1e-3}, Case{"gpt", "fp16", 2e-4}),
                         name_of);

}  // namespace
}  // namespace onnx_train::training_test
