// Batch norms of ResNet-18 for CIFAR at batch 32 and of an MLP, the layer norms of a GPT of width 768 (512 tokens), and
// dropout, through our kernels: bytes read and written per second.
#include <benchmark/benchmark.h>

#include "onnx_passes/functions/functions.h"
#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

// `passes`: how often an array of x's size is read or written, at least.
void run(benchmark::State& state, PreparedNode node, const Tensor& x, int64_t passes) {
  node.run();
  for (auto _ : state) node.run();
  state.SetBytesProcessed(state.iterations() * passes * static_cast<int64_t>(x.bytes()));
}

Tensor of_channels(int64_t channels) { return random_tensor(DType::kFloat, {channels}); }
Tensor ones(int64_t channels) { return Tensor::full(DType::kFloat, {channels}, 1); }

// ---- Batch normalization: batch, channels, side of the image (0: none)

Shape image(const benchmark::State& state) {
  if (state.range(2) == 0) return {state.range(0), state.range(1)};
  return {state.range(0), state.range(1), state.range(2), state.range(2)};
}

void batch_norm(benchmark::State& state) {
  const Tensor x = random_tensor(DType::kFloat, image(state)), v = of_channels(state.range(1));
  run(state, PreparedNode("BatchNormalizationTrain", {x, v, v}, {}, 3, kDomain), x, 2);
}
void batch_norm_gradient(benchmark::State& state) {
  const Tensor x = random_tensor(DType::kFloat, image(state)), v = of_channels(state.range(1));
  run(state, PreparedNode("BatchNormalizationGrad", {x, v, v, ones(state.range(1)), x.clone()}, {}, 3, kDomain), x, 3);
}
void layers(benchmark::internal::Benchmark* b) {
  b->Args({32, 64, 32})->Args({32, 128, 16})->Args({32, 256, 8})->Args({32, 512, 4})->Args({128, 512, 0});
  b->UseRealTime();
}
BENCHMARK(batch_norm)->Apply(layers);
BENCHMARK(batch_norm_gradient)->Apply(layers);

// ---- Layer normalization, dropout

const Shape kHidden = {512, 768};

void layer_norm(benchmark::State& state) {
  const Tensor x = random_tensor(DType::kFloat, kHidden), v = of_channels(kHidden[1]);
  run(state, PreparedNode("LayerNormalization", {x, v, v}), x, 2);
}
void layer_norm_gradient(benchmark::State& state) {
  const Tensor x = random_tensor(DType::kFloat, kHidden), v = of_channels(kHidden[1]);
  run(state, PreparedNode("LayerNormalizationGrad", {x, v, x.clone()}, {}, 3, kDomain), x, 3);
}
void dropout(benchmark::State& state) {
  const Tensor x = random_tensor(DType::kFloat, kHidden), key = Tensor::of<uint64_t>({2}, {1, 2});
  run(state, PreparedNode("Dropout", {x, key, Tensor::scalar(0.1f)}, {}, 2, kDomain), x, 2);
}
BENCHMARK(layer_norm)->UseRealTime();
BENCHMARK(layer_norm_gradient)->UseRealTime();
BENCHMARK(dropout)->UseRealTime();

}  // namespace
}  // namespace onnx_train
