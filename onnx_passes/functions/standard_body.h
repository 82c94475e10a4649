// What the bodies of ONNX's operators (operators/standard_bodies.h) have in common. They belong to their Builder.
#pragma once

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/operators/standard_bodies.h"

namespace onnx_train {

// For bodies: whether the ranks of all inputs are known, and input i; Var() when it is left out.
bool has_ranks(const Node& node);
Var input(Builder& b, const Node& node, int i);

// The columns of a DeformConv, and what its gradient needs of them. N images, G groups of offsets, C channels, K taps,
// P places of the output.
struct DeformedColumns {
  Var x;        // [N G, C / G, S...]
  Var points;   // [N G, K, O..., axes]: SampleImage's, in pixels
  Var sampled;  // [N G, C / G, K, O...]
  Var mask;     // [N G, 1, K, O...], or none
  Var columns;  // [N, groups, C / groups K, P]: of the convolution
  Var weight;   // [groups, M / groups, C / groups K]
};
DeformedColumns deformed_columns(Builder& b, const Node& node);
// The attributes with which they are sampled.
Attrs deformed_sampling();

}  // namespace onnx_train
