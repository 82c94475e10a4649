// Quantization-aware training (Jacob et al. 2018): linear layers and convolutions compute with weights and inputs that
// are rounded as they will be in integers, forward; gradients go straight through.
//
//   weights       symmetric, one scale for each output channel (or one for all): scale = max |w| / 127, in every step
//                 from the weight as it is
//   activations   the inputs of layers, and the results of convolutions after their batch norm and Relu. Their range
//                 [min, max] is state of the training model: `step` observes it, all else reads it
//
//   scale = (max(max, 0) - min(min, 0)) / (high - low),  zero_point = low - round(min(min, 0) / scale)
//
// Passes on a model that one caller owns; they throw Error that names the node or the option.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/model/pass.h"

namespace onnx_train {

// What --qat says.
struct QatSpec {
  bool per_channel = true;          // weights=per_channel|per_tensor
  bool signed_activations = false;  // activations=uint8|int8
  // observer=ema: a moving average of the ranges of batches, corrected for its start as Adam's are; minmax: all of them
  double averaging = 0.01;  // 0 for minmax
};

// Parses "int8", "weights=per_tensor", "observer=minmax", "averaging=0.1". Throws Error that names the piece.
QatSpec parse_qat(const std::vector<std::string>& pieces);

// Inserts FakeQuantizeWeight and FakeQuantizeActivation into the imported model.
Pass quantization_aware(const QatSpec& spec);

}  // namespace onnx_train
