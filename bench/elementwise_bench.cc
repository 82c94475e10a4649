// Element-wise operators, activations and softmax of a GPT of width 768 (512 tokens), through our kernels: bytes read
// and written per second.
#include <benchmark/benchmark.h>

#include "onnx_passes/functions/functions.h"
#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

Tensor x(Shape shape, unsigned seed = 1) { return random_tensor(DType::kFloat, std::move(shape), seed); }

void run(benchmark::State& state, PreparedNode node, int64_t elements) {
  node.run();
  for (auto _ : state) node.run();
  state.SetBytesProcessed(state.iterations() * elements * static_cast<int64_t>(sizeof(float)));
}

const Shape kHidden = {512, 3072};
constexpr int64_t kSize = 512 * 3072;

void unary(benchmark::State& state, const char* op) { run(state, PreparedNode(op, {x(kHidden)}), 2 * kSize); }

void binary(benchmark::State& state, const char* op, const Shape& second) {
  run(state, PreparedNode(op, {x(kHidden), x(second, 2)}), (second == kHidden ? 3 : 2) * kSize);
}

void gradient(benchmark::State& state, const char* op) {
  run(state, PreparedNode(op, {x(kHidden), x(kHidden, 2)}, {}, 1, kDomain), 3 * kSize);
}

const Shape kScores = {2, 12, 256, 256};
constexpr int64_t kScoresSize = 2 * 12 * 256 * 256;

void softmax(benchmark::State& state, int axis) {
  run(state, PreparedNode("Softmax", {x(kScores)}, {{"axis", axis}}), 2 * kScoresSize);
}

void softmax_gradient(benchmark::State& state) {
  run(state, PreparedNode("SoftmaxGrad", {x(kScores), x(kScores, 2)}, {{"axis", -1}}, 1, kDomain), 3 * kScoresSize);
}

void mask(benchmark::State& state) {
  const Tensor allowed = Tensor::full(DType::kInt8, {1, 1, 256, 256}, 1).cast(DType::kBool);
  run(state, PreparedNode("Where", {allowed, x(kScores), Tensor::scalar(-1e9f)}), 2 * kScoresSize);
}

BENCHMARK_CAPTURE(unary, relu, "Relu")->UseRealTime();
BENCHMARK_CAPTURE(unary, exp, "Exp")->UseRealTime();
BENCHMARK_CAPTURE(unary, log, "Log")->UseRealTime();
BENCHMARK_CAPTURE(unary, tanh, "Tanh")->UseRealTime();
BENCHMARK_CAPTURE(unary, erf, "Erf")->UseRealTime();
BENCHMARK_CAPTURE(unary, sigmoid, "Sigmoid")->UseRealTime();
BENCHMARK_CAPTURE(unary, gelu, "Gelu")->UseRealTime();
BENCHMARK_CAPTURE(unary, softplus, "Softplus")->UseRealTime();
BENCHMARK_CAPTURE(binary, add, "Add", kHidden)->UseRealTime();
BENCHMARK_CAPTURE(binary, add_row, "Add", {3072})->UseRealTime();
BENCHMARK_CAPTURE(binary, add_column, "Add", {512, 1})->UseRealTime();
BENCHMARK_CAPTURE(binary, pow_scalar, "Pow", {})->UseRealTime();
BENCHMARK_CAPTURE(gradient, relu, "ReluGrad")->UseRealTime();
BENCHMARK_CAPTURE(gradient, gelu, "GeluGrad")->UseRealTime();
BENCHMARK_CAPTURE(gradient, gelu_tanh, "GeluTanhGrad")->UseRealTime();
BENCHMARK_CAPTURE(softmax, last_axis, -1)->UseRealTime();
BENCHMARK_CAPTURE(softmax, inner_axis, 2)->UseRealTime();
BENCHMARK(softmax_gradient)->UseRealTime();
BENCHMARK(mask)->UseRealTime();

}  // namespace
}  // namespace onnx_train
