// Kernels that move or reduce memory, at sizes of a GPT-2 block and of a ResNet: bytes read and written per second.
#include <benchmark/benchmark.h>

#include "onnx_passes/functions/functions.h"
#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

void measure(benchmark::State& state, PreparedNode& node, int64_t elements) {
  node.run();
  for (auto _ : state) node.run();
  state.SetBytesProcessed(state.iterations() * elements * static_cast<int64_t>(sizeof(float)));
}

void reduce(benchmark::State& state, Shape shape, const std::vector<int64_t>& axes) {
  const Tensor x = random_tensor(DType::kFloat, std::move(shape));
  PreparedNode node("ReduceSum", {x, Tensor::ints(axes)}, {{"keepdims", 0}});
  measure(state, node, x.size());
}

void permute(benchmark::State& state, Shape shape, std::vector<int64_t> permutation) {
  const Tensor x = random_tensor(DType::kFloat, std::move(shape));
  PreparedNode node("Transpose", {x}, {{"perm", permutation}});
  measure(state, node, 2 * x.size());
}

// Indices into a vocabulary, spread over it.
Tensor tokens(int64_t count, int64_t vocabulary) {
  Tensor indices(DType::kInt64, {count});
  for (int64_t i = 0; i < count; ++i) indices.data<int64_t>()[i] = i * 7919 % vocabulary;
  return indices;
}

constexpr int64_t kVocabulary = 8192, kWidth = 768, kTokens = 512;

void gather(benchmark::State& state) {
  PreparedNode node("Gather", {random_tensor(DType::kFloat, {kVocabulary, kWidth}), tokens(kTokens, kVocabulary)});
  measure(state, node, 2 * kTokens * kWidth);
}

void gather_grad(benchmark::State& state) {
  PreparedNode node("GatherGrad",
                    {random_tensor(DType::kFloat, {kTokens, kWidth}), tokens(kTokens, kVocabulary),
                     Tensor::ints({kVocabulary, kWidth})},
                    {{"axis", 0}}, 1, kDomain);
  measure(state, node, (kVocabulary + 2 * kTokens) * kWidth);
}

BENCHMARK_CAPTURE(reduce, rows, Shape{4096, 768}, {1})->UseRealTime();
BENCHMARK_CAPTURE(reduce, columns, Shape{4096, 768}, {0})->UseRealTime();
BENCHMARK_CAPTURE(reduce, all, Shape{4096, 768}, {0, 1})->UseRealTime();
BENCHMARK_CAPTURE(reduce, channels_first, Shape{32, 64, 32, 32}, {0, 2, 3})->UseRealTime();
BENCHMARK_CAPTURE(reduce, channels_last, Shape{32, 32, 32, 64}, {0, 1, 2})->UseRealTime();
BENCHMARK_CAPTURE(reduce, short_rows, Shape{100000, 10}, {1})->UseRealTime();
BENCHMARK_CAPTURE(permute, matrix, Shape{2048, 1024}, {1, 0})->UseRealTime();
BENCHMARK_CAPTURE(permute, heads, Shape{2, 256, 12, 64}, {0, 2, 1, 3})->UseRealTime();
BENCHMARK_CAPTURE(permute, keys, Shape{2, 256, 12, 64}, {0, 2, 3, 1})->UseRealTime();
BENCHMARK_CAPTURE(permute, channels_last, Shape{32, 64, 32, 32}, {0, 2, 3, 1})->UseRealTime();
BENCHMARK(gather)->UseRealTime();
BENCHMARK(gather_grad)->UseRealTime();

}  // namespace
}  // namespace onnx_train
