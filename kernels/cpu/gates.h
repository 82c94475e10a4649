// Activation functions of the gates of recurrent cells, over rows of numbers.
#pragma once

#include <cstdint>

#include "onnx_passes/ir/recurrence.h"

namespace onnx_train::cpu {

// y = f(x); y may be x. With a limit other than 0, x is first cut to [-limit, limit].
template <typename T>
void activate(const GateActivation& f, float limit, int64_t n, const T* x, T* y);

// dy f'(x), written over dy, from y = f(x).
template <typename T>
void differentiate(const GateActivation& f, int64_t n, const T* y, T* dy);

}  // namespace onnx_train::cpu
