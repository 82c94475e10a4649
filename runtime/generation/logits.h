// The logits of a language model among its outputs. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

using Texts = std::vector<std::vector<int64_t>>;  // tokens
using Logits = std::vector<std::vector<double>>;  // [texts, vocabulary]

// A relative difference of logits that were computed in two ways, and are the same.
constexpr double kRoundingOfLogits = 1e-3;

// Of an output float[batch, tokens, vocabulary].
bool are_logits(DType dtype, size_t rank);

// The logits at a place of each text. Throws Error if no output has them, or has none at that place.
Logits logits_at(const TensorMap& outputs, const std::vector<int64_t>& places);

// The largest difference in a text, relative to the largest logit of it; infinite where one of them alone is no number.
double relative_difference(const Logits& one, const Logits& other);

}  // namespace onnx_train
