// How tests of precisions build: the network y against `target`, with plain gradient descent.
#pragma once

#include "onnx_passes/passes.h"

namespace onnx_train {

inline BuildOptions mse_options(Precision precision) {
  BuildOptions options;
  options.precision = precision;
  options.loss = "mse(y, target)";
  options.optimizer = "sgd";
  return options;
}

}  // namespace onnx_train
