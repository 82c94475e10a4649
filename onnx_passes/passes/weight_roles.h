// What a weight is for, found from the nodes that read it: initial values depend on it, and which constants are
// weights. Functions on a graph that does not change meanwhile; they throw nothing of their own.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

enum class WeightRole {
  kLinear,           // of MatMul, Gemm, Conv, ConvTranspose
  kEmbedding,        // a table that Gather reads
  kBias,             // added to what a linear weight gives, or by a norm
  kNormScale,        // multiplies what a norm gives
  kRunningMean,      // of BatchNormalization
  kRunningVariance,  // the same
  kOther,
};

struct WeightUse {
  WeightRole role = WeightRole::kOther;
  double fan_in = 0;      // of linear weights, as torch counts it; of a bias: its linear weight's, 0 when it has none
  double fan_out = 0;     // of linear weights and embeddings
  bool residual = false;  // a linear weight whose result is added to a value that is no bias (a residual stream)
};

WeightUse use_of(const Value& weight);

// Whether some node reads the constant `value` where operators have their weights: as a filter, a table, the operand of
// a product, the parameter of a norm or of a recurrent layer, or as a bias or scale of channels that is added to or
// multiplies what the model computes. Looks through nodes that change only shape or type. Types are inferred.
bool is_read_as_weight(const Value& value);

}  // namespace onnx_train
