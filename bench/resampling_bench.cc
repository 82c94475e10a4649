// Resize by 2 of feature maps and its gradient through our kernels, channels first and last, in bytes read and written
// per second; and a copy of as many bytes.
#include <benchmark/benchmark.h>

#include <cstring>

#include "kernels/cpu/support/parallel.h"
#include "onnx_passes/functions/functions.h"
#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

const Shape kChannelsFirst = {8, 64, 64, 64};  // where channels are last, it is as large

Shape doubled(Shape shape, const std::vector<int64_t>& axes) {
  for (const int64_t axis : axes) shape[static_cast<size_t>(axis)] *= 2;
  return shape;
}

void count_bytes(benchmark::State& state) {
  const int64_t elements = 5 * num_elements(kChannelsFirst);  // the small map and the large one
  state.SetBytesProcessed(elements * 4 * state.iterations());
}

void copy(benchmark::State& state) {
  const int64_t half = 5 * num_elements(kChannelsFirst) / 2;
  const Tensor x = random_tensor(DType::kFloat, {half});
  Tensor y = x.clone();
  for (auto _ : state) {
    cpu::parallel_for(half, 1, [&](int64_t begin, int64_t end) {
      std::memcpy(y.data<float>() + begin, x.data<float>() + begin, static_cast<size_t>(end - begin) * sizeof(float));
    });
    benchmark::ClobberMemory();
  }
  count_bytes(state);
}
BENCHMARK(copy)->UseRealTime();

std::vector<int64_t> spatial(bool channels_last) {
  return channels_last ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 3};
}

void forward(benchmark::State& state, const char* mode, bool channels_last) {
  const std::vector<int64_t> axes = spatial(channels_last);
  const Attrs attrs = {{"mode", mode}, {"axes", axes}};
  const Tensor scales = Tensor::of<float>({2}, {2, 2});
  PreparedNode node("Resize", {random_tensor(DType::kFloat, kChannelsFirst), Tensor(), scales}, attrs);
  node.run();
  for (auto _ : state) node.run();
  count_bytes(state);
}

void gradient(benchmark::State& state, const char* mode, bool channels_last) {
  const std::vector<int64_t> axes = spatial(channels_last);
  const Attrs attrs = {{"axes", axes},
                       {"mode", mode},
                       {"coordinate_transformation_mode", "half_pixel"},
                       {"nearest_mode", "round_prefer_floor"},
                       {"keep_aspect_ratio_policy", "stretch"},
                       {"antialias", 0},
                       {"exclude_outside", 0},
                       {"cubic_coeff_a", -0.75f}};
  const Tensor dy = random_tensor(DType::kFloat, doubled(kChannelsFirst, axes));
  PreparedNode node("ResizeGrad", {dy, Tensor::ints(kChannelsFirst)}, attrs, 1, kDomain);
  node.run();
  for (auto _ : state) node.run();
  count_bytes(state);
}

BENCHMARK_CAPTURE(forward, nearest, "nearest", false)->UseRealTime();
BENCHMARK_CAPTURE(forward, linear, "linear", false)->UseRealTime();
BENCHMARK_CAPTURE(forward, cubic, "cubic", false)->UseRealTime();
BENCHMARK_CAPTURE(forward, nearest_channels_last, "nearest", true)->UseRealTime();
BENCHMARK_CAPTURE(forward, linear_channels_last, "linear", true)->UseRealTime();
BENCHMARK_CAPTURE(gradient, nearest, "nearest", false)->UseRealTime();
BENCHMARK_CAPTURE(gradient, linear, "linear", false)->UseRealTime();
BENCHMARK_CAPTURE(gradient, cubic, "cubic", false)->UseRealTime();
BENCHMARK_CAPTURE(gradient, nearest_channels_last, "nearest", true)->UseRealTime();
BENCHMARK_CAPTURE(gradient, linear_channels_last, "linear", true)->UseRealTime();

}  // namespace
}  // namespace onnx_train
