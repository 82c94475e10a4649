// The formulas of pools that are more than a sum or a maximum. Stateless; host and device code share them.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

// (Σ |x|^p)^(1/p)
template <typename T>
struct PNorm {
  T p;
  ONNX_TRAIN_HD T add(T sum, T x) const { return sum + std::pow(std::abs(x), p); }
  ONNX_TRAIN_HD T finish(T sum) const { return std::pow(sum, 1 / p); }
};

// A sum over `count` elements, of which there may be none.
template <typename T>
ONNX_TRAIN_HD inline T average(T sum, int64_t count) {
  return sum / static_cast<T>(count > 1 ? count : 1);
}

}  // namespace onnx_train::math
