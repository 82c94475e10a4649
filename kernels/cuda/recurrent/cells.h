// Device code of the cells of RNN, GRU and LSTM. A cell's kernel computes one step of one direction, one element (a
// sample, a hidden unit) per thread; layouts are those of kernels/geometry/recurrent.h.
#pragma once

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/geometry/recurrent.h"
#include "kernels/math/convert.h"
#include "kernels/math/gates.h"

namespace onnx_train::cuda {

struct CellStep {
  int64_t elements;  // batch x hidden
  Divider hidden;
  int64_t gate_stride;     // distance between samples of the gates
  const int32_t* lengths;  // lengths of the samples, or null
  int64_t t;
  float clip;  // bound of the activations' inputs; 0: none
  bool rounds_operands, rounds_gates;

  __device__ int64_t n() const { return hidden.divisor(); }
};

// The element of the calling thread. Element i of [B, H] is a unit of `sample`, whose gates start at `gate`.
struct CellElement {
  int64_t i, gate;
  bool exists, live;  // live: the sample has the step

  __device__ explicit CellElement(const CellStep& s) : i(int64_t{blockIdx.x} * kThreads + threadIdx.x) {
    const int64_t sample = s.hidden.quotient(i);
    gate = sample * s.gate_stride + i - sample * s.n();
    exists = i < s.elements;
    live = exists && is_live(s.lengths, s.t, sample);
  }
};

// f(x), with x clipped first.
template <typename T>
__device__ T activate(const GateActivation& f, float clip, T x) {
  const T most = clip;
  if (clip != 0) x = x < -most ? -most : x > most ? most : x;
  return math::with_activation<T>(f, [x](auto function) { return function(x); });
}

// dy f'(x), from y = f(x).
template <typename T>
__device__ T differentiate(const GateActivation& f, T y, T dy) {
  return math::with_slope<T>(f, [dy, y](auto slope) { return slope(dy, y); });
}

// x, or the nearest bfloat16 number.
template <typename T>
__device__ T rounded(bool rounds, T x) {
  return rounds ? math::convert<T>(math::convert<BFloat16>(x)) : x;
}

}  // namespace onnx_train::cuda
