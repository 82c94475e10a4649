// One training network and its batches, for the tests of every device.
#pragma once

#include "runtime/session/session.h"
#include "tests/support/transformer.h"

namespace onnx_train {

inline constexpr int64_t kDeviceTestTokens = 16;

inline Model network() { return make_training_transformer({.blocks = 1, .width = 32, .tokens = kDeviceTestTokens}); }

// Four samples; the last label, number 63, is `label`. The classes are 0 to 15.
inline TensorMap batch(int64_t label = 1) {
  const Shape shape = {4, kDeviceTestTokens};
  Tensor tokens(DType::kInt64, shape), labels(DType::kInt64, shape);
  for (int64_t i = 0; i < tokens.size(); ++i) {
    tokens.set(i, static_cast<double>(i * 7 % 16));
    labels.set(i, static_cast<double>(i * 5 % 16));
  }
  labels.set(labels.size() - 1, static_cast<double>(label));
  return {{"tokens", tokens}, {"labels", labels}};
}

inline SessionOptions on(Device* device) {
  SessionOptions options;
  options.device = device;
  return options;
}

}  // namespace onnx_train
