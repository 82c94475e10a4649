// Convolutions as sums that threads gather. Each output element has one writer, so nothing is atomic and results do not
// change between runs.
#include "kernels/cuda/convolution/convolutions.h"
#include "kernels/cuda/convolution/plan.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/dispatch.h"

namespace onnx_train::cuda {
namespace {

// y[n, o, p] = bias[o] + Σ over k, c of x[n, c, p stride + k dilation - pad] w[o, c, k]. One thread per element.
template <typename T>
__global__ void conv_direct(int64_t n, ConvPlan plan, const T* x, const T* w, const T* bias, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement to = plan.y.element(i);
  const auto& [depth, height, width] = plan.axes;
  const int64_t group = plan.out_group.quotient(to.channel);
  x += (to.image * plan.groups + group) * plan.ins * plan.in_size;
  w += to.channel * plan.ins * plan.taps;
  T sum = bias ? bias[to.channel] : T{0};
  for (int64_t kz = 0; kz < depth.kernel; ++kz) {
    const int64_t z = depth.at(to.z, kz);
    if (z < 0 || z >= depth.in) continue;
    for (int64_t ky = 0; ky < height.kernel; ++ky) {
      const int64_t line = height.at(to.y, ky);
      if (line < 0 || line >= height.in) continue;
      for (int64_t kx = 0; kx < width.kernel; ++kx) {
        const int64_t column = width.at(to.x, kx);
        if (column < 0 || column >= width.in) continue;
        const T* from = x + (z * height.in + line) * width.in + column;
        const T* weight = w + (kz * height.kernel + ky) * width.kernel + kx;
        for (int64_t c = 0; c < plan.ins; ++c) sum += from[c * plan.in_size] * weight[c * plan.taps];
      }
    }
  }
  y[i] = sum;
}

// dx[n, c, q] = bias[c] + Σ over k, o of dy[n, o, p] w[o, c, k], where window p reads q at tap k. One thread per
// element.
template <typename T>
__global__ void conv_input_gradient(int64_t n, ConvPlan plan, const T* dy, const T* w, const T* bias, T* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const PlacedElement to = plan.x.element(i);
  const auto& [depth, height, width] = plan.axes;
  const int64_t group = plan.in_group.quotient(to.channel), step = plan.ins * plan.taps;
  dy += (to.image * plan.groups + group) * plan.outs * plan.out_size;
  w += group * plan.outs * step + (to.channel - group * plan.ins) * plan.taps;
  T sum = bias ? bias[to.channel] : T{0};
  for (int64_t kz = 0; kz < depth.kernel; ++kz) {
    const int64_t z = plan.window(0, to.z, kz);
    if (z < 0) continue;
    for (int64_t ky = 0; ky < height.kernel; ++ky) {
      const int64_t line = plan.window(1, to.y, ky);
      if (line < 0) continue;
      for (int64_t kx = 0; kx < width.kernel; ++kx) {
        const int64_t column = plan.window(2, to.x, kx);
        if (column < 0) continue;
        const T* from = dy + (z * height.out + line) * width.out + column;
        const T* weight = w + (kz * height.kernel + ky) * width.kernel + kx;
        for (int64_t o = 0; o < plan.outs; ++o) sum += from[o * plan.out_size] * weight[o * step];
      }
    }
  }
  dx[i] = sum;
}

// dw[o, c, k] = Σ over n, p of x[n, c, p stride + k dilation - pad] dy[n, o, p]. One block of kSize threads per
// element.
template <int kSize, typename T>
__global__ void conv_weight_gradient(int64_t n, ConvPlan plan, const T* x, const T* dy, T* dw) {
  GPU_SHARED(scratch, T[kSize / gpu::kWarpSize]);
  const auto& [depth, height, width] = plan.axes;
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const PlacedElement to = plan.w.element(i);  // its image is the output channel, its position the tap
    const int64_t channel = plan.out_group.quotient(to.image) * plan.ins + to.channel;
    T sum = 0;
    for (int64_t j = threadIdx.x; j < plan.images * plan.out_size; j += kSize) {
      const PlacedElement window = plan.windows.element(j);
      const int64_t z = depth.at(window.z, to.z), line = height.at(window.y, to.y), column = width.at(window.x, to.x);
      if (z < 0 || z >= depth.in || line < 0 || line >= height.in || column < 0 || column >= width.in) continue;
      const int64_t p = (window.z * height.out + window.y) * width.out + window.x;
      sum += x[((window.image * plan.groups * plan.ins + channel) * depth.in + z) * height.in * width.in +
               line * width.in + column] *
             dy[(window.image * plan.groups * plan.outs + to.image) * plan.out_size + p];
    }
    sum = merge_block<kSize>(sum, scratch, [](T a, T b) { return a + b; });
    if (threadIdx.x == 0) dw[i] = sum;
    __syncthreads();  // before the next element uses `scratch`
  }
}

template <typename T>
void run_direct(const Launch& launch, Direction direction, int64_t n, const ConvPlan& plan, bool has_bias) {
  const T* bias = has_bias ? launch.in<T>(2) : nullptr;
  const auto blocks = [](int64_t count) { return static_cast<unsigned>(std::min<int64_t>(count, 0x7fffffff)); };
  constexpr int kFew = gpu::kWarpSize;
  switch (direction) {
    case Direction::kForward:
      return enqueue(launch, "conv_direct", conv_direct<T>, blocks_for(n), kThreads, 0, n, plan, launch.in<T>(0),
                     launch.in<T>(1), bias, launch.out<T>());
    case Direction::kInputGradient:
      return enqueue(launch, "conv_input_gradient", conv_input_gradient<T>, blocks_for(n), kThreads, 0, n, plan,
                     launch.in<T>(0), launch.in<T>(1), bias, launch.out<T>());
    case Direction::kWeightGradient:
      if (plan.images * plan.out_size < 4 * kThreads) {
        return enqueue(launch, "conv_weight_gradient", conv_weight_gradient<kFew, T>, blocks(n), kFew, 0, n, plan,
                       launch.in<T>(0), launch.in<T>(1), launch.out<T>());
      }
      return enqueue(launch, "conv_weight_gradient", conv_weight_gradient<kThreads, T>, blocks(n), kThreads, 0, n, plan,
                     launch.in<T>(0), launch.in<T>(1), launch.out<T>());
  }
}

// Fills the output of an empty sum: the bias of each channel, or zeros.
template <typename T>
__global__ void fill_channels(int64_t n, Divider size, Divider channels, const T* bias, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t plane = size.quotient(i);
  y[i] = bias ? bias[plane - channels.quotient(plane) * channels.divisor()] : T{0};
}

template <typename T>
Prepared prepare_empty(const Shape& y, bool has_bias) {
  const int64_t n = num_elements(y);
  if (n == 0) return {[](const Launch&) {}};
  return {[=, size = Divider(n / (y[0] * y[1])), channels = Divider(y[1])](const Launch& launch) {
    enqueue(launch, "fill_channels", fill_channels<T>, blocks_for(n), kThreads, 0, n, size, channels,
            has_bias ? launch.in<T>(2) : nullptr, launch.out<T>());
  }};
}

}  // namespace

Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, Direction direction) {
  const bool biased = has_bias(spec, direction);
  const bool empty = num_elements(c.x) == 0 || num_elements(c.w) == 0 || num_elements(c.y) == 0;
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    if (empty) return prepare_empty<T>(spec.out_shape(), biased);
    return {[=, n = spec.out_size(), plan = ConvPlan(c)](const Launch& launch) {
      run_direct<T>(launch, direction, n, plan, biased);
    }};
  });
}

}  // namespace onnx_train::cuda
