// Convolutions as sums that threads gather: the plainest form, for what cuDNN does not run. Each output element has one
// writer, so nothing is atomic and results do not change between runs. Operands are stored as S, results as C.
#include "kernels/cuda/convolution/channel_bias.h"
#include "kernels/cuda/convolution/convolutions.h"
#include "kernels/cuda/convolution/plan.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {
namespace {

// y[n, o, p] = bias[o] + Σ over k, c of x[n, c, p stride + k dilation - pad] w[o, c, k]. One thread per element.
template <typename S, typename C>
__global__ void conv_direct(int64_t n, ConvPlan plan, const S* __restrict__ x, const S* __restrict__ w,
                            const Computed<S>* bias, C* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement to = plan.y.element(i);
  const auto& [depth, height, width] = plan.axes;
  const int64_t group = plan.out_group.quotient(to.channel);
  x += (to.image * plan.groups + group) * plan.ins * plan.in_size;
  w += to.channel * plan.ins * plan.taps;
  Computed<S> sum = bias ? bias[to.channel] : 0;
  for (int64_t kz = 0; kz < depth.kernel; ++kz) {
    const int64_t z = depth.at(to.z, kz);
    if (z < 0 || z >= depth.in) continue;
    for (int64_t ky = 0; ky < height.kernel; ++ky) {
      const int64_t line = height.at(to.y, ky);
      if (line < 0 || line >= height.in) continue;
      for (int64_t kx = 0; kx < width.kernel; ++kx) {
        const int64_t column = width.at(to.x, kx);
        if (column < 0 || column >= width.in) continue;
        const S* from = x + (z * height.in + line) * width.in + column;
        const S* weight = w + (kz * height.kernel + ky) * width.kernel + kx;
        for (int64_t c = 0; c < plan.ins; ++c) {
          sum += widened(from[c * plan.in_size]) * widened(weight[c * plan.taps]);
        }
      }
    }
  }
  y[i] = math::convert<C>(sum);
}

// dx[n, c, q] = bias[c] + Σ over k, o of dy[n, o, p] w[o, c, k], where window p reads q at tap k. One thread per
// element.
template <typename S, typename C>
__global__ void conv_input_gradient(int64_t n, ConvPlan plan, const S* __restrict__ dy, const S* __restrict__ w,
                                    const Computed<S>* bias, C* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement to = plan.x.element(i);
  const auto& [depth, height, width] = plan.axes;
  const int64_t group = plan.in_group.quotient(to.channel), step = plan.ins * plan.taps;
  dy += (to.image * plan.groups + group) * plan.outs * plan.out_size;
  w += group * plan.outs * step + (to.channel - group * plan.ins) * plan.taps;
  Computed<S> sum = bias ? bias[to.channel] : 0;
  for (int64_t kz = 0; kz < depth.kernel; ++kz) {
    const int64_t z = plan.window(0, to.z, kz);
    if (z < 0) continue;
    for (int64_t ky = 0; ky < height.kernel; ++ky) {
      const int64_t line = plan.window(1, to.y, ky);
      if (line < 0) continue;
      for (int64_t kx = 0; kx < width.kernel; ++kx) {
        const int64_t column = plan.window(2, to.x, kx);
        if (column < 0) continue;
        const S* from = dy + (z * height.out + line) * width.out + column;
        const S* weight = w + (kz * height.kernel + ky) * width.kernel + kx;
        for (int64_t o = 0; o < plan.outs; ++o) sum += widened(from[o * plan.out_size]) * widened(weight[o * step]);
      }
    }
  }
  dx[i] = math::convert<C>(sum);
}

// dw[o, c, k] = Σ over n, p of x[n, c, p stride + k dilation - pad] dy[n, o, p]. One block of kSize threads per
// element.
template <int kSize, typename S, typename C>
__global__ void conv_weight_gradient(int64_t n, ConvPlan plan, const S* __restrict__ x, const S* __restrict__ dy,
                                     C* dw) {
  const auto& [depth, height, width] = plan.axes;
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const PlacedElement to = plan.w.element(i);  // its image is the output channel, its position the tap
    const int64_t channel = plan.out_group.quotient(to.image) * plan.ins + to.channel;
    Computed<S> sum = 0;
    for (int64_t j = threadIdx.x; j < plan.images * plan.out_size; j += kSize) {
      const PlacedElement window = plan.windows.element(j);
      const int64_t z = depth.at(window.z, to.z), line = height.at(window.y, to.y), column = width.at(window.x, to.x);
      if (z < 0 || z >= depth.in || line < 0 || line >= height.in || column < 0 || column >= width.in) continue;
      const int64_t p = (window.z * height.out + window.y) * width.out + window.x;
      const int64_t plane = (window.image * plan.groups * plan.ins + channel) * depth.in + z;
      sum += widened(x[(plane * height.in + line) * width.in + column]) *
             widened(dy[(window.image * plan.groups * plan.outs + to.image) * plan.out_size + p]);
    }
    sum = merge_block<kSize>(sum, Sum());
    if (threadIdx.x == 0) dw[i] = math::convert<C>(sum);
  }
}

template <typename S, typename C>
void run_direct(const Launch& launch, Direction direction, int64_t n, const ConvPlan& plan, bool has_bias) {
  const S *a = launch.in<S>(0), *b = launch.in<S>(1);
  const Computed<S>* bias = has_bias ? launch.in<Computed<S>>(2) : nullptr;
  C* const to = launch.out<C>();
  switch (direction) {
    case Direction::kForward: return enqueue_each(launch, "conv_direct", conv_direct<S, C>, n, plan, a, b, bias, to);
    case Direction::kInputGradient:
      return enqueue_each(launch, "conv_input_gradient", conv_input_gradient<S, C>, n, plan, a, b, bias, to);
    case Direction::kWeightGradient: {
      constexpr int kFew = gpu::kWarpSize;
      const bool is_short = plan.images * plan.out_size < 4 * kThreads;
      const auto blocks = static_cast<unsigned>(std::min<int64_t>(n, 0x7fffffff));
      return enqueue(launch, "conv_weight_gradient",
                     is_short ? conv_weight_gradient<kFew, S, C> : conv_weight_gradient<kThreads, S, C>, blocks,
                     is_short ? kFew : kThreads, 0, n, plan, a, b, to);
    }
  }
}

}  // namespace

Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, Direction direction) {
  const bool biased = has_bias(spec, direction);
  if (num_elements(c.x) == 0 || num_elements(c.w) == 0 || num_elements(c.y) == 0) {  // sums of nothing
    return {[=, shape = spec.out_shape(), type = spec.out_type()](const Launch& launch) {
      add_channel_bias(launch, shape, nullptr, biased ? launch.inputs[2] : nullptr, type, launch.outputs[0]);
    }};
  }
  return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename C>(S, C) -> Prepared {
    return {[=, n = spec.out_size(), plan = ConvPlan(c)](const Launch& launch) {
      run_direct<S, C>(launch, direction, n, plan, biased);
    }};
  });
}

}  // namespace onnx_train::cuda
