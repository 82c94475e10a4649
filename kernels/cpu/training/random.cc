#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/random.h"
#include "kernels/math/philox.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Random words are generated for this many elements at a time, on the stack.
constexpr int64_t kChunk = 512, kBlocks = kChunk / 4;

// Generates the words of chunk `chunk` of a stream.
void fill_words(RandomKey key, uint32_t stream, int64_t chunk, uint32_t* __restrict words) {
  uint32_t columns[4][kBlocks];
  const auto first = static_cast<uint64_t>(chunk) * kBlocks;
#pragma omp simd
  for (int64_t b = 0; b < kBlocks; ++b) {
    const Words4 w = random_words(key, stream, first + static_cast<uint64_t>(b));
    columns[0][b] = w.w0, columns[1][b] = w.w1, columns[2][b] = w.w2, columns[3][b] = w.w3;
  }
  for (int64_t b = 0; b < kBlocks; ++b) {
    for (int64_t w = 0; w < 4; ++w) words[4 * b + w] = columns[w][b];
  }
}

// Calls f(begin, count, words) for consecutive ranges of [0, n), each at most a chunk.
template <typename F>
void for_each_chunk(int64_t n, RandomKey key, uint32_t stream, F&& f) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  parallel_for(chunks, 8, [&](int64_t begin, int64_t end) {
    uint32_t words[kChunk];
    for (int64_t c = begin; c < end; ++c) {
      vectorized([&] { fill_words(key, stream, c, words); });
      f(c * kChunk, std::min(kChunk, n - c * kChunk), words);
    }
  });
}

RandomKey key_of(const Launch& a, int input) { return {a.in<uint64_t>(input)[0], a.in<uint64_t>(input)[1]}; }

// ---- Dropout

template <typename T>
void drop(const T* x, const uint32_t* __restrict words, uint32_t least, T kept, int64_t n, T* y,
          bool* __restrict mask) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const bool keep = (words[i] >> 8) >= least;
    mask[i] = keep;
    y[i] = keep ? x[i] / kept : T{0};
  }
}

double ratio_of(const Launch& a, int input, DType dtype) {
  return dispatch_float(dtype, [&](auto zero) { return static_cast<double>(*a.in<decltype(zero)>(input)); });
}

// Whether types are supported: x, y, or both may be bfloat16 (kernels/lowering/storage/narrow_storage.cc).
bool supports_dropout(const NodeSpec& s) {
  const DType computed = computed_type(s.in_type(0));
  return is_float_or_double(computed) && computed_type(s.out_type()) == computed && has_key_and_ratio(s);
}

Prepared prepare_dropout(const NodeSpec& s) {
  return dispatch_float(computed_type(s.in_type()), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const int64_t n = s.in_size();
    const uint32_t stream = random_stream(s);
    const DType ratio_type = s.in_type(2);
    const bool keeps_mask = s.has_output(1), narrow_x = is_narrow(s.in_type()), narrow_y = is_narrow(s.out_type());
    const auto run = [=](const Launch& a) {
      const LinesIn<T> x(a.inputs[0], narrow_x);
      const LinesOut<T> y(a.outputs[0], narrow_y);
      const double ratio = ratio_of(a, 2, ratio_type);
      const uint32_t least = dropout_threshold(static_cast<float>(ratio));
      const T kept = 1 - static_cast<T>(ratio);
      for_each_chunk(n, key_of(a, 1), stream, [&](int64_t begin, int64_t count, const uint32_t* words) {
        bool unwanted[kChunk];
        T wide[kChunk];
        T* to = y.place(begin, wide);
        vectorized([&] {
          drop(x.get(begin, count, wide), words, least, kept, count, to,
               keeps_mask ? a.out<bool>(1) + begin : unwanted);
        });
        y.put(begin, count, to);
      });
    };
    return {run, 0, {{0, 0}}};
  });
}

Prepared prepare_inference(const NodeSpec& s) {
  const size_t bytes = static_cast<size_t>(s.in_size()) * size_of(s.in_type());
  const auto n = s.has_output(1) ? static_cast<size_t>(s.in_size()) : 0;
  const auto run = [=](const Launch& a) {
    if (a.in<char>(0) != a.out<char>(0)) std::memcpy(a.out<char>(0), a.in<char>(0), bytes);
    if (n > 0) std::memset(a.out<bool>(1), 1, n);
  };
  return {run, 0, {{0, 0}}};
}

// ---- Initial values

// The bodies produce float32; those of a model converted to float64 compute in float64.
bool supports_drawing(const NodeSpec& s) { return is_float_or_double(s.out_type()) && has_random_key(s, 0); }

Prepared prepare_uniform(const NodeSpec& s) {
  return dispatch_float(s.out_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const int64_t n = s.out_size();
    const uint32_t stream = random_stream(s);
    const T low = static_cast<T>(s.node().attr("low", 0.0f)), width = static_cast<T>(s.node().attr("high", 1.0f)) - low;
    return {[=](const Launch& a) {
      T* y = a.out<T>();
      for_each_chunk(n, key_of(a, 0), stream, [&](int64_t begin, int64_t count, const uint32_t* words) {
        for (int64_t i = 0; i < count; ++i) y[begin + i] = static_cast<T>(uniform(words[i])) * width + low;
      });
    }};
  });
}

// The Box-Muller transform of the function body. Chunks have an even size, so none splits a pair.
Prepared prepare_normal(const NodeSpec& s) {
  return dispatch_float(s.out_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    constexpr T kTurn = static_cast<T>(6.283185307179586f);
    const int64_t n = s.out_size();
    const uint32_t stream = random_stream(s);
    const T mean = static_cast<T>(s.node().attr("mean", 0.0f)), scale = static_cast<T>(s.node().attr("scale", 1.0f));
    return {[=](const Launch& a) {
      T* y = a.out<T>();
      for_each_chunk(n, key_of(a, 0), stream, [&](int64_t begin, int64_t count, const uint32_t* words) {
        for (int64_t i = 0; i < count; i += 2) {
          const T radius = std::sqrt(T{-2} * std::log(1 - static_cast<T>(uniform(words[i]))));
          const T angle = static_cast<T>(uniform(words[i + 1])) * kTurn;
          y[begin + i] = radius * std::cos(angle) * scale + mean;
          if (i + 1 < count) y[begin + i + 1] = radius * std::sin(angle) * scale + mean;
        }
      });
    }};
  });
}

}  // namespace

std::vector<Kernel> random_kernels() {
  return {
      {"Dropout", is_inference_dropout, prepare_inference},
      {"Dropout", supports_dropout, prepare_dropout, kDomain},
      {"RandomUniform", supports_drawing, prepare_uniform, kDomain},
      {"RandomNormal", supports_drawing, prepare_normal, kDomain},
  };
}

}  // namespace onnx_train::cpu
