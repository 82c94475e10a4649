// The role of a weight, found from the nodes that read it: it selects initial values and tells which constants are
// weights. Functions on a graph that must not change meanwhile; they throw nothing of their own.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

enum class WeightRole {
  kLinear,           // of MatMul, Gemm, Conv, ConvTranspose
  kEmbedding,        // a table that Gather reads
  kBias,             // added to the output of a linear weight, or by a norm
  kNormScale,        // multiplies the output of a norm
  kRunningMean,      // of BatchNormalization
  kRunningVariance,  // the same
  kOther,
};

struct WeightUse {
  WeightRole role = WeightRole::kOther;
  double fan_in = 0;      // of linear weights, as torch counts it; of a bias: that of its linear weight, or 0
  double fan_out = 0;     // of linear weights and embeddings
  bool residual = false;  // a linear weight whose result is added to a value that is not a bias (a residual stream)
};

WeightUse use_of(const Value& weight);

// Whether some node reads the constant `value` as a weight: as a filter, a table, the operand of a product, a parameter
// of a norm or recurrent layer, or a bias or scale of channels. Follows nodes that change only shape or type. Types
// must be inferred.
bool is_read_as_weight(const Value& value);

// Whether `value` is an input of the model, or several beside each other or parts of one, that at most have been
// shifted and scaled by constants.
bool is_scaled_input(const Value* value);
// Whether `use`, of a constant in an Add, adds it to what a Softmax makes probabilities of, and not as a layer's bias.
bool is_added_to_scores(const Use& use);

}  // namespace onnx_train
