// The formulas of normalizations, for one element or one channel. Pure functions; host and device code share them.
#pragma once

#include <cmath>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

// 1 / sqrt(variance + epsilon)
ONNX_TRAIN_HD inline double inverse_deviation(double variance, double epsilon) {
  return 1 / std::sqrt(variance + epsilon);
}

// y = (x - mean) factor + bias
template <typename T>
ONNX_TRAIN_HD inline T normalized(T x, T mean, T factor, T bias) {
  return (x - mean) * factor + bias;
}

// dx = dy a - b - (x - mean) c
template <typename T>
ONNX_TRAIN_HD inline T normalized_gradient(T x, T dy, T mean, T a, T b, T c) {
  return dy * a - b - (x - mean) * c;
}

// LRN: x / (bias + share squares)^beta
template <typename T>
struct LocalResponse {
  T share, beta, bias;
  ONNX_TRAIN_HD T operator()(T x, T squares) const { return x * std::pow(bias + share * squares, -beta); }
};

// LpNormalization: the norm of a line for p = 1 (`absolute`) and p = 2; zeros stay zeros.
struct LineNorm {
  bool absolute;
  template <typename T>
  ONNX_TRAIN_HD T add(T total, T x) const {
    return total + (absolute ? std::abs(x) : x * x);
  }
  template <typename T>
  ONNX_TRAIN_HD T finish(T total) const {
    return absolute ? total : std::sqrt(total);
  }
  template <typename T>
  ONNX_TRAIN_HD static T divide(T x, T norm) {
    return norm == 0 ? T{0} : x / norm;
  }
};

}  // namespace onnx_train::math
