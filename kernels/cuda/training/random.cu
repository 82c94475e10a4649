// Dropout and the operators that draw initial values. As on the CPU, the bits are a function of key and position.
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/random.h"
#include "kernels/math/philox.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

constexpr int kWords = 4;  // elements per thread: one block of the generator

struct Words {
  uint32_t at[kWords];
  __device__ Words(const uint64_t* key, uint32_t stream, int64_t block) {
    const Words4 words = random_words({key[0], key[1]}, stream, static_cast<uint64_t>(block));
    at[0] = words.w0, at[1] = words.w1, at[2] = words.w2, at[3] = words.w3;
  }
};

__device__ inline int64_t thread_number() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

unsigned blocks_for_words(int64_t n) { return blocks_for((n + kWords - 1) / kWords); }

// y = keep ? x / (1 - ratio) : 0, and keep, unless mask is null.
template <typename S, typename Y, typename R>
__global__ void drop(int64_t n, const uint64_t* key, uint32_t stream, const R* ratio, const Fault* guard, const S* x,
                     Y* y, bool* mask) {
  using T = Computed<S>;
  const int64_t first = thread_number() * kWords;
  if (stops(guard) || first >= n) return;
  const uint32_t least = dropout_threshold(static_cast<float>(*ratio));
  const T kept = 1 - static_cast<T>(static_cast<double>(*ratio));
  const Words words(key, stream, thread_number());
  for (int w = 0; w < kWords && first + w < n; ++w) {
    const bool keep = (words.at[w] >> 8) >= least;
    y[first + w] = math::convert<Y>(keep ? widened(x[first + w]) / kept : T{0});
    if (mask) mask[first + w] = keep;
  }
}

template <typename S, typename Y, typename R>
Prepared prepare_dropout(const NodeSpec& spec) {
  const int64_t n = spec.in_size();
  const uint32_t stream = random_stream(spec);
  const bool has_mask = spec.num_outputs() > 1 && spec.has_output(1);
  const auto run = [=](const Launch& launch) {
    if (n == 0) return;
    enqueue(launch, "drop", drop<S, Y, R>, blocks_for_words(n), kThreads, 0, n, launch.in<uint64_t>(1), stream,
            launch.in<R>(2), guard_of(launch, 1, 1), launch.in<S>(0), launch.out<Y>(),
            has_mask ? launch.out<bool>(1) : nullptr);
  };
  std::vector<InPlace> in_place;
  if (sizeof(S) == sizeof(Y)) in_place = {{0, 0}};
  return {run, 0, std::move(in_place)};
}

Prepared prepare_inference(const NodeSpec& spec) {
  const size_t bytes = static_cast<size_t>(spec.in_size()) * size_of(spec.in_type());
  const size_t mask = spec.num_outputs() > 1 && spec.has_output(1) ? static_cast<size_t>(spec.in_size()) : 0;
  const auto run = [=](const Launch& launch) {
    if (bytes > 0 && launch.inputs[0] != launch.outputs[0]) {
      check(cudaMemcpyAsync(launch.outputs[0], launch.inputs[0], bytes, cudaMemcpyDeviceToDevice, stream_of(launch)),
            "cudaMemcpyAsync");
    }
    if (mask > 0) set_bytes(launch, launch.outputs[1], 1, mask);
  };
  return {run, 0, {{0, 0}}};
}

template <typename T>
__global__ void draw_uniform(int64_t n, const uint64_t* key, uint32_t stream, T low, T width, T* y) {
  const int64_t first = thread_number() * kWords;
  if (first >= n) return;
  const Words words(key, stream, thread_number());
  for (int w = 0; w < kWords && first + w < n; ++w) y[first + w] = static_cast<T>(uniform(words.at[w])) * width + low;
}

// The Box-Muller transform of the function body.
template <typename T>
__global__ void draw_normal(int64_t n, const uint64_t* key, uint32_t stream, T mean, T scale, T* y) {
  constexpr T kTurn = static_cast<T>(6.283185307179586f);
  const int64_t first = thread_number() * kWords;
  if (first >= n) return;
  const Words words(key, stream, thread_number());
  for (int w = 0; w < kWords && first + w < n; w += 2) {
    const T radius = std::sqrt(T{-2} * std::log(1 - static_cast<T>(uniform(words.at[w]))));
    const T angle = static_cast<T>(uniform(words.at[w + 1])) * kTurn;
    y[first + w] = radius * std::cos(angle) * scale + mean;
    if (first + w + 1 < n) y[first + w + 1] = radius * std::sin(angle) * scale + mean;
  }
}

template <typename T>
using Draw = void(int64_t, const uint64_t*, uint32_t, T, T, T*);

template <typename T>
Prepared prepare_drawing(const NodeSpec& spec, const char* name, Draw<T>* kernel, T first, T second) {
  const int64_t n = spec.out_size();
  const uint32_t stream = random_stream(spec);
  return {[=](const Launch& launch) {
    if (n == 0) return;
    enqueue(launch, name, kernel, blocks_for_words(n), kThreads, 0, n, launch.in<uint64_t>(0), stream, first, second,
            launch.out<T>());
  }};
}

Prepared prepare_uniform(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) {
    const T low = static_cast<T>(spec.node().attr("low", 0.0f)), high = static_cast<T>(spec.node().attr("high", 1.0f));
    return prepare_drawing<T>(spec, "draw_uniform", draw_uniform<T>, low, high - low);
  });
}

Prepared prepare_normal(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) {
    const T mean = static_cast<T>(spec.node().attr("mean", 0.0f)),
            scale = static_cast<T>(spec.node().attr("scale", 1.0f));
    return prepare_drawing<T>(spec, "draw_normal", draw_normal<T>, mean, scale);
  });
}

}  // namespace

std::vector<Kernel> random_kernels() {
  const auto supports_drawing = [](const NodeSpec& spec) {
    return is_float_or_double(spec.out_type()) && has_random_key(spec, 0);
  };
  const auto supports_dropout = [](const NodeSpec& spec) {
    return is_stored_pair(spec.in_type(), spec.out_type()) && has_key_and_ratio(spec);
  };
  const auto dropout = [](const NodeSpec& spec) {
    return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename Y>(S, Y) {
      return dispatch_float(spec.in_type(2), [&]<typename R>(R) { return prepare_dropout<S, Y, R>(spec); });
    });
  };
  return {
      {"Dropout", is_inference_dropout, prepare_inference},
      {"Dropout", supports_dropout, dropout, kDomain},
      {"RandomUniform", supports_drawing, prepare_uniform, kDomain},
      {"RandomNormal", supports_drawing, prepare_normal, kDomain},
  };
}

}  // namespace onnx_train::cuda
