// Activation functions of the gates of recurrent cells, over rows of n elements. Pure functions; any thread may call
// them.
#pragma once

#include <cstdint>

#include "onnx_passes/operators/gate_activation.h"

namespace onnx_train::cpu {

// y = f(x); y may be x. With a nonzero limit, x is first clipped to [-limit, limit].
template <typename T>
void activate(const GateActivation& f, float limit, int64_t n, const T* x, T* y);

// Replaces dy by dy f'(x), computed from y = f(x).
template <typename T>
void differentiate(const GateActivation& f, int64_t n, const T* y, T* dy);

}  // namespace onnx_train::cpu
