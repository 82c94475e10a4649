// Checks of the nodes of random operators of our domain, and the test by which Dropout keeps elements. Pure functions;
// any thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/dispatch.h"
#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace onnx_train {

inline uint32_t random_stream(const NodeSpec& spec) { return static_cast<uint32_t>(spec.node().attr("stream", 0)); }

// Whether an input holds a RandomKey (kernels/math/philox.h).
inline bool has_random_key(const NodeSpec& spec, int input) {
  return spec.in_type(input) == DType::kUint64 && spec.in_size(input) == 2;
}

inline bool has_key_and_ratio(const NodeSpec& spec) {
  return has_random_key(spec, 1) && is_float_or_double(spec.in_type(2)) && spec.in_size(2) == 1;
}

// Whether ONNX's Dropout is in inference mode: y = x and a mask of ones.
inline bool is_inference_dropout(const NodeSpec& spec) {
  if (!spec.has_input(2)) return true;
  return spec.is_constant(2) && spec.in_size(2) == 1 && spec.constant(2).at(0) == 0;
}

// uniform(word) >= ratio is equivalent to (upper 24 bits of word) >= ratio 2^24; returns that threshold.
ONNX_TRAIN_HD inline uint32_t dropout_threshold(float ratio) {
  if (!(ratio <= 1)) return 1u << 24;  // nothing is kept
  return ratio <= 0 ? 0 : static_cast<uint32_t>(std::ceil(static_cast<double>(ratio) * 0x1p24));
}

}  // namespace onnx_train
