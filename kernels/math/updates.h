// The updates of optimizers for one element (bodies: onnx_passes/functions/updates.cc), and the coefficients that
// all elements of a step share. Stateless; host and device code share them.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

enum class UpdateFormula : int32_t { kSgd, kMomentum, kAdam };

// Attributes of an update.
struct UpdateParameters {
  UpdateFormula formula = UpdateFormula::kSgd;
  bool decoupled = false, nesterov = false;
  double decay = 0, momentum = 0, dampening = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  bool operator==(const UpdateParameters&) const = default;
};

// Coefficients of every element, computed once per step from attributes and scalars.
struct Coefficients {
  double scale, decay, rate, momentum, share;                            // Sgd
  double keep, beta1, rest1, beta2, rest2, v_scale, epsilon, step_size;  // Adam
};

// `t` is the number of the step, from 1.
ONNX_TRAIN_HD inline Coefficients coefficients_of(const UpdateParameters& p, double t, double rate, double scale) {
  Coefficients k{};
  k.rate = rate;
  k.scale = scale;
  k.decay = p.decoupled ? 0 : p.decay;
  if (p.formula != UpdateFormula::kAdam) {
    k.momentum = p.momentum;
    k.share = t == 1 ? 1.0 : 1 - p.dampening;
    return k;
  }
  k.keep = p.decoupled ? 1 - k.rate * p.decay : 1;
  k.beta1 = p.beta1, k.rest1 = 1 - p.beta1;
  k.beta2 = p.beta2, k.rest2 = 1 - p.beta2;
  k.v_scale = std::sqrt(1 - std::pow(p.beta2, t));
  k.epsilon = p.epsilon;
  k.step_size = k.rate / (1 - std::pow(p.beta1, t));
  return k;
}

// w is the weight, g its gradient; b, m and v are slots. The operators return the new weight and write the new slots.

template <typename T>
struct Sgd {
  T scale, decay, rate;
  ONNX_TRAIN_HD explicit Sgd(const Coefficients& k)
      : scale(static_cast<T>(k.scale)), decay(static_cast<T>(k.decay)), rate(static_cast<T>(k.rate)) {}
  ONNX_TRAIN_HD T operator()(T w, T g) const { return w - rate * (g * scale + w * decay); }
};

template <typename T>
struct Momentum {
  T scale, decay, rate, momentum, share;
  bool nesterov;
  ONNX_TRAIN_HD Momentum(const Coefficients& k, bool is_nesterov)
      : scale(static_cast<T>(k.scale)),
        decay(static_cast<T>(k.decay)),
        rate(static_cast<T>(k.rate)),
        momentum(static_cast<T>(k.momentum)),
        share(static_cast<T>(k.share)),
        nesterov(is_nesterov) {}
  ONNX_TRAIN_HD T operator()(T w, T g, T b, T* next_b) const {
    const T gradient = g * scale + w * decay;
    const T buffer = b * momentum + gradient * share;
    const T direction = nesterov ? gradient + buffer * momentum : buffer;
    *next_b = buffer;
    return w - rate * direction;
  }
};

// Adam and AdamW: Adam has keep = 1, AdamW has decay = 0.
template <typename T>
struct Adam {
  T scale, decay, keep, beta1, rest1, beta2, rest2, v_scale, epsilon, step_size;
  ONNX_TRAIN_HD explicit Adam(const Coefficients& k)
      : scale(static_cast<T>(k.scale)),
        decay(static_cast<T>(k.decay)),
        keep(static_cast<T>(k.keep)),
        beta1(static_cast<T>(k.beta1)),
        rest1(static_cast<T>(k.rest1)),
        beta2(static_cast<T>(k.beta2)),
        rest2(static_cast<T>(k.rest2)),
        v_scale(static_cast<T>(k.v_scale)),
        epsilon(static_cast<T>(k.epsilon)),
        step_size(static_cast<T>(k.step_size)) {}
  ONNX_TRAIN_HD T operator()(T w, T g, T m, T v, T* next_m, T* next_v) const {
    const T gradient = g * scale + w * decay;
    const T first = m * beta1 + gradient * rest1;
    const T second = v * beta2 + gradient * gradient * rest2;
    *next_m = first;
    *next_v = second;
    return w * keep - step_size * (first / (std::sqrt(second) / v_scale + epsilon));
  }
};

// Adam for rows that have a gradient; the correction of the second moment is in the step size.
template <typename T>
struct SparseAdam {
  T scale, rest1, rest2, epsilon, step_size;
  ONNX_TRAIN_HD explicit SparseAdam(const Coefficients& k)
      : scale(static_cast<T>(k.scale)),
        rest1(static_cast<T>(k.rest1)),
        rest2(static_cast<T>(k.rest2)),
        epsilon(static_cast<T>(k.epsilon)),
        step_size(static_cast<T>(k.step_size * k.v_scale)) {}
  ONNX_TRAIN_HD T operator()(T w, T g, T m, T v, T* next_m, T* next_v) const {
    const T gradient = g * scale;
    const T first = m + (gradient - m) * rest1;
    const T second = v + (gradient * gradient - v) * rest2;
    *next_m = first;
    *next_v = second;
    return w - step_size * (first / (std::sqrt(second) + epsilon));
  }
};

}  // namespace onnx_train::math
