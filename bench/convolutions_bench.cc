// The convolutions of ResNet-18 for CIFAR at batch 32, and a depthwise one, through our kernels: forward, input
// gradient, weight gradient.
#include <benchmark/benchmark.h>

#include "onnx_passes/functions/functions.h"
#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

struct Layer {
  int64_t ins, outs, kernel, stride, size, group;
};

Layer layer(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(3), state.range(4), state.range(5)};
}

constexpr int64_t kBatch = 32;

void run(benchmark::State& state, const char* op, bool input_gradient, bool weight_gradient) {
  const Layer l = layer(state);
  const int64_t out = l.size / l.stride;
  const Tensor x = random_tensor(DType::kFloat, {kBatch, l.ins, l.size, l.size});
  const Tensor w = random_tensor(DType::kFloat, {l.outs, l.ins / l.group, l.kernel, l.kernel});
  const Tensor y = random_tensor(DType::kFloat, {kBatch, l.outs, out, out});
  const Attrs attrs = {{"strides", std::vector<int64_t>(2, l.stride)},
                       {"dilations", std::vector<int64_t>(2, 1)},
                       {"pads", std::vector<int64_t>(4, l.kernel / 2)},
                       {"group", l.group}};
  std::vector<Tensor> inputs = {x, w};
  if (input_gradient) inputs = {y, w, Tensor::ints(x.shape())};
  if (weight_gradient) inputs = {x, y, Tensor::ints(w.shape())};
  PreparedNode node(op, inputs, attrs, 1, input_gradient || weight_gradient ? kDomain : "");
  node.run();
  for (auto _ : state) node.run();
  const int64_t multiplications = y.size() * w.size() / l.outs * state.iterations();
  state.counters["FLOP/s"] = benchmark::Counter(static_cast<double>(2 * multiplications), benchmark::Counter::kIsRate);
}

void forward(benchmark::State& state) { run(state, "Conv", false, false); }
void input_gradient(benchmark::State& state) { run(state, "ConvGradInput", true, false); }
void weight_gradient(benchmark::State& state) { run(state, "ConvGradWeight", false, true); }

// Channels in, channels out, kernel, stride, size, groups.
void layers(benchmark::internal::Benchmark* b) {
  b->Args({3, 64, 3, 1, 32, 1})
      ->Args({64, 64, 3, 1, 32, 1})
      ->Args({64, 128, 3, 2, 32, 1})
      ->Args({64, 128, 1, 2, 32, 1});
  b->Args({128, 128, 3, 1, 16, 1})
      ->Args({256, 256, 3, 1, 8, 1})
      ->Args({512, 512, 3, 1, 4, 1})
      ->Args({64, 64, 3, 1, 32, 64});
  b->UseRealTime();
}
BENCHMARK(forward)->Apply(layers);
BENCHMARK(input_gradient)->Apply(layers);
BENCHMARK(weight_gradient)->Apply(layers);

}  // namespace
}  // namespace onnx_train
