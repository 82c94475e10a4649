// Cross entropy over a vocabulary of 8,192 (512 tokens) and optimizer updates of ten million weights, through our
// kernels: bytes read and written per second.
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

constexpr int64_t kTokens = 512, kVocabulary = 8192, kWeights = 10'000'000;

const Attrs kCrossEntropy = {
    {"axis", 1}, {"ignore_index", -100}, {"label_smoothing", Tensor::scalar(0.0)}, {"reduction", "mean"}};

Tensor labels() {
  Tensor tensor(DType::kInt64, {kTokens});
  for (int64_t i = 0; i < kTokens; ++i) tensor.set(i, static_cast<double>(i * 37 % kVocabulary));
  return tensor;
}

void cross_entropy(benchmark::State& state) {
  run(state, PreparedNode("SoftmaxCrossEntropy", {x({kTokens, kVocabulary}), labels()}, kCrossEntropy, 2, kDomain),
      kTokens * kVocabulary);
}

void cross_entropy_gradient(benchmark::State& state) {
  run(state,
      PreparedNode("SoftmaxCrossEntropyGrad",
                   {Tensor::scalar(1.0f), x({kTokens, kVocabulary}), labels(), x({kTokens}, 2)}, kCrossEntropy, 1,
                   kDomain),
      2 * kTokens * kVocabulary);
}

void adamw(benchmark::State& state) {
  const Attrs attrs = {{"beta1", Tensor::scalar(0.9)},
                       {"beta2", Tensor::scalar(0.999)},
                       {"epsilon", Tensor::scalar(1e-8)},
                       {"weight_decay", Tensor::scalar(0.1)}};
  const Tensor second_moment = Tensor::full(DType::kFloat, {kWeights}, 0.5);
  run(state,
      PreparedNode("AdamW",
                   {x({kWeights}), x({kWeights}, 2), x({kWeights}, 3), second_moment, Tensor::scalar<int64_t>(3),
                    Tensor::scalar(1e-3f), Tensor::scalar(1.0f)},
                   attrs, 3, kDomain),
      7 * kWeights);
}

void sgd(benchmark::State& state) {
  const Attrs attrs = {{"momentum", Tensor::scalar(0.9)},
                       {"dampening", Tensor::scalar(0.0)},
                       {"nesterov", 0},
                       {"weight_decay", Tensor::scalar(0.0)}};
  run(state,
      PreparedNode("Sgd",
                   {x({kWeights}), x({kWeights}, 2), x({kWeights}, 3), Tensor::scalar<int64_t>(3),
                    Tensor::scalar(1e-3f), Tensor::scalar(1.0f)},
                   attrs, 2, kDomain),
      5 * kWeights);
}

void global_norm(benchmark::State& state) {
  run(state, PreparedNode("GlobalNorm", {x({kWeights})}, {}, 1, kDomain), kWeights);
}

BENCHMARK(cross_entropy)->UseRealTime();
BENCHMARK(cross_entropy_gradient)->UseRealTime();
BENCHMARK(adamw)->UseRealTime();
BENCHMARK(sgd)->UseRealTime();
BENCHMARK(global_norm)->UseRealTime();

}  // namespace
}  // namespace onnx_train
