// Products of a GPT of width 768 (512 rows of tokens, 12 heads of 256 tokens) and of an MLP, through our kernels.
#include <benchmark/benchmark.h>

#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

void run(benchmark::State& state, PreparedNode node, int64_t multiplications) {
  node.run();
  for (auto _ : state) node.run();
  state.counters["FLOP/s"] = benchmark::Counter(static_cast<double>(2 * multiplications * state.iterations()),
                                                benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

Tensor x(Shape shape) { return random_tensor(DType::kFloat, std::move(shape)); }

// Rows, columns, sum; transA, transB.
void gemm(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2), ta = state.range(3), tb = state.range(4);
  const Shape a = ta ? Shape{k, m} : Shape{m, k}, b = tb ? Shape{n, k} : Shape{k, n};
  run(state, PreparedNode("Gemm", {x(a), x(b)}, {{"transA", ta}, {"transB", tb}}), m * n * k);
}
BENCHMARK(gemm)
    ->Args({512, 3072, 768, 0, 0})  // forward, input gradient, weight gradient
    ->Args({512, 768, 3072, 0, 1})
    ->Args({768, 3072, 512, 1, 0})
    ->Args({512, 8192, 768, 0, 1})  // the head
    ->Args({128, 512, 784, 0, 1})
    ->Args({512, 784, 128, 1, 0})
    ->Args({128, 10, 512, 0, 1})
    ->UseRealTime();

void attention(benchmark::State& state) {
  run(state, PreparedNode("MatMul", {x({2, 12, 256, 64}), x({2, 12, 64, 256})}), 2 * 12 * 256 * 256 * 64);
}
BENCHMARK(attention)->UseRealTime();

}  // namespace
}  // namespace onnx_train
